// Line charts.

import { clamp, range } from "../engine/numbers.js";
import { rem, svg } from "./elements.js";
import { count, number } from "./format.js";

const NEAR = 5; // pixels between a label and a curve

/** Lines of values at `places`, increasing numbers from the left: `lines` have {y, kind, title}, and
 * {share: name} if they have an axis of their own, from 0 to 1, and {at} if they have other places;
 * `level` is dashed; `here` is the selected index; `marks` are {at, label}, where the glossary has the
 * label; `levels` are {value, label} of thin lines, drawn if they are in the range of `lines`; `values`
 * adds a vertical axis, `unit` names the places. A press calls `choose` with the index of the nearest
 * place. */
export function lineChart(box, lines, { label, places, unit, here = null, choose, values,
  level = null, dots = [], marks = [], levels = [] }) {
  const width = box.clientWidth, height = box.clientHeight;
  const shares = lines.find(({ share }) => share)?.share;
  const all = [...lines.filter(({ share }) => !share).flatMap((line) => line.y), level]
    .filter(Number.isFinite);
  if (!width || !all.length) return;
  const [left, right, top, bottom] = [values ? 2.6 : 0.8, shares ? 4.2 : 1.2, 0.6, 1.1]
    .map((pad) => pad * rem());
  const low = Math.min(...all), high = Math.max(...all, low + 0.02);
  const longest = lines.map(({ at = places }) => at).reduce((a, b) => (b.at(-1) >= a.at(-1) ? b : a));
  const end = longest.at(-1) || 1, power = powerOf(longest);
  const along = (place) => left + (place / end) ** power * (width - left - right);
  const x = (i, at = places) => along(at[i]);
  const y = (value, share = (value - low) / (high - low)) =>
    top + (1 - share) * (height - top - bottom);
  const line = (kind, x1, x2, y1, y2) => svg("line", { class: kind, x1, x2, y1, y2 });
  const across = (value, kind) => line(kind, left, width - right, y(value), y(value));
  const upright = (i, kind) => line(kind, x(i), x(i), 0, height - bottom);
  const text = (x, y, anchor, words) => svg("text", { x, y, "text-anchor": anchor }, words);
  const chart = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });

  if (values) {
    const digits = high - low < 0.2 ? 3 : 2;
    for (const value of roundNumbers(low, high, clamp(Math.floor(height / 1.8 / rem()), 2, 5))) {
      const words = text(left - 6, y(value) + 4, "end", number(value, digits));
      chart.append(across(value, "axis"), words);
    }
  }
  for (const [share, words] of shares ? [[1, "100%"], [0.5, shares], [0, "0%"]] : []) {
    chart.append(text(width - right + 8, y(0, share) + 4, "start", words));
  }
  const taken = []; // where ticks are
  const round = power > 0.9 ? roundNumbers(0, end) : [5, 2, 1].flatMap((n) =>
    range(8).map((e) => n * 10 ** e)).reverse().filter((place) => place < end);
  for (const place of [end, 0, ...round]) {
    if (taken.some((other) => Math.abs(other - along(place)) < 3 * rem())) continue;
    const at = along(place);
    taken.push(at);
    chart.append(line("axis", at, at, height - bottom, height - bottom + 3),
      text(at, height - 2, "middle", place ? count(place) : `${unit} 0`));
  }
  const front = labels(); // what lines must not cross
  const addTitled = (line, label) => {
    line.append(svg("title", {}, label));
    chart.append(line);
  };
  for (const { at, label } of marks) addTitled(upright(at, "mark"), label);
  for (const { value, label } of levels) {
    if (value > low && value < high) addTitled(across(value, "axis"), label);
  }
  if (Number.isFinite(level)) chart.append(across(level, "uniform"));
  if (here !== null) chart.append(upright(here, "moment"));
  for (const { y: values, kind, title, share, at } of lines) {
    const points = range(values.length).filter((i) => Number.isFinite(values[i]))
      .map((i) => `${x(i, at)},${y(values[i], share && values[i])}`).join(" ");
    chart.append(svg("polyline", { class: `line ${kind}`, points }, svg("title", {}, title)));
  }
  chart.append(...front);
  dots.forEach((value, i) => {
    const [kind, r] = i === here ? ["dot now", 6] : ["dot", 2.5];
    if (Number.isFinite(value)) {
      chart.append(svg("circle", { class: kind, cx: x(i), cy: y(value), r }));
    }
  });
  box.replaceChildren(chart);
  if (!choose) return;
  box.onpointerdown = box.onpointermove = (event) => {
    if (!(event.buttons & 1)) return;
    box.setPointerCapture(event.pointerId);
    const at = event.clientX - box.getBoundingClientRect().left;
    const apart = (i) => Math.abs(x(i) - at);
    choose(range(places.length).reduce((a, b) => (apart(b) < apart(a) ? b : a)));
  };

  /** The labels of the marks that have room next to it, away from the curves. */
  function labels() {
    const boxes = []; // [left, right, row] of each label
    const tall = 0.75 * rem(), curve = ({ y: values, share, at: own = places }, at) => {
      const i = Math.max(1, own.findIndex((place) => along(place) >= at));
      const [a, b] = [x(i - 1, own), x(i, own)];
      const [ya, yb] = [i - 1, i].map((each) => y(values[each], share && values[each]));
      return ya + clamp((at - a) / (b - a || 1), 0, 1) * (yb - ya);
    };
    const isFree = ({ row, from, to }, curves) => from > 0 && to < width - (shares ? right : 0) &&
      boxes.every(([a, b, other]) => other !== row || to < a || from > b) &&
      curves.every((line) => range(Math.ceil((to - from) / 4) + 1)
        .map((i) => curve(line, from + 4 * i))
        .every((at) => at < row * tall - NEAR || at > (row + 1) * tall + NEAR));
    return width < 500 ? [] : marks.flatMap(({ at, label }) => {
      const wide = 0.42 * rem() * label.length, start = x(at) + 3, end = x(at) - 3;
      const spots = range(Math.floor((height - bottom) / tall)).flatMap((row) => [
        { row, from: start, to: start + wide, anchor: "start", place: start },
        { row, from: end - wide, to: end, anchor: "end", place: end }]);
      const spot = spots.find((each) => isFree(each, lines)) ??
        spots.find((each) => isFree(each, lines.slice(0, 2))); // with those of another run
      if (!spot) return []; // its mark still has the label as a title
      boxes.push([spot.from, spot.to, spot.row]);
      const words = text(spot.place, (spot.row + 1) * tall, spot.anchor, label);
      words.classList.add("label");
      words.dataset.term = label;
      return [words];
    });
  }
}

/** The power of an axis on which half of the places are in each half: 1 if they are even. */
function powerOf(places) {
  const last = places.length - 1, m = Math.floor(last / 2), part = places[m] / places[last];
  return part > 0 && part < 1 ? clamp(Math.log(m / last) / Math.log(part), 0.2, 1) : 1;
}

// Round numbers between low and high, about `most`.
function roundNumbers(low, high, most = 5) {
  const power = 10 ** Math.floor(Math.log10((high - low) / most));
  const step = power * [1, 2, 5, 10].find((n) => (high - low) / (n * power) <= most);
  return range(7).map((i) => (Math.ceil(low / step) + i) * step).filter((value) => value <= high);
}
