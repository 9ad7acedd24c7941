// Line charts.

import { range } from "../engine/numbers.js";
import { rem, svg } from "./elements.js";
import { number } from "./format.js";

/** Lines of evenly spaced values: `lines` have {y, kind, title}; `names` label the horizontal axis;
 * `level` is dashed; `here` is the selected index; `marks` are {at, label}; `values` adds a
 * vertical axis. A click calls `choose`. */
export function lineChart(box, lines, { label, names, here = null, choose, values, level = null,
  dots = [], marks = [] }) {
  const width = box.clientWidth, height = box.clientHeight;
  const all = [...lines.flatMap((line) => line.y), level].filter(Number.isFinite);
  if (!width || !all.length) return;
  const [left, right, top, bottom] = [values ? 2.6 : 0.5, values ? 1 : 0.5, 0.6, 1.1]
    .map((pad) => pad * rem());
  const low = Math.min(...all), high = Math.max(...all, low + 1e-6);
  const last = names.length - 1, x = (i) => left + (i / (last || 1)) * (width - left - right);
  const y = (value) => top + ((high - value) / (high - low)) * (height - top - bottom);
  const across = (value, kind) =>
    svg("line", { class: kind, x1: left, x2: width - right, y1: y(value), y2: y(value) });
  const upright = (i, kind) =>
    svg("line", { class: kind, x1: x(i), x2: x(i), y1: 0, y2: height - bottom });
  const text = (x, y, anchor, words) => svg("text", { x, y, "text-anchor": anchor }, words);
  const chart = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });

  if (values) {
    for (const value of roundNumbers(low, high)) {
      chart.append(across(value, "axis"), text(left - 6, y(value) + 4, "end", number(value, 2)));
    }
  }
  let free = width - 3 * rem(); // to the left of where a step's label has room
  for (let i = last; i >= 0; i--) {
    if (i < last && x(i) > free) continue;
    const anchor = !i ? "start" : i < last ? "middle" : "end";
    chart.append(text(x(i), height - 2, anchor, names[i]));
    free = Math.min(free, x(i) - 3.5 * rem());
  }
  const front = []; // what lines must not cross
  marks.forEach(({ at, label }, i) => {
    const [along, anchor] = at < last / 2 ? [3, "start"] : [-3, "end"];
    const mark = upright(at, "mark");
    mark.append(svg("title", {}, label));
    chart.append(mark);
    const words = text(x(at) + along, 0.75 * rem() * (1 + i % 4), anchor, label);
    words.classList.add("label");
    if (width > 500) front.push(words);
  });
  if (Number.isFinite(level)) chart.append(across(level, "uniform"));
  if (here !== null) chart.append(upright(here, "moment"));
  for (const line of lines) {
    const points = range(names.length).filter((i) => Number.isFinite(line.y[i]))
      .map((i) => `${x(i)},${y(line.y[i])}`).join(" ");
    const kind = `line ${line.kind}`;
    chart.append(svg("polyline", { class: kind, points }, svg("title", {}, line.title)));
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
  box.onclick = (event) => {
    const across = event.clientX - box.getBoundingClientRect().left - left;
    choose(Math.round((across / (width - left - right)) * last));
  };
}

// A few round numbers between low and high.
function roundNumbers(low, high) {
  const power = 10 ** Math.floor(Math.log10((high - low) / 5));
  const step = power * [1, 2, 5, 10].find((n) => (high - low) / (n * power) <= 5);
  return range(7).map((i) => (Math.ceil(low / step) + i) * step).filter((value) => value <= high);
}
