// Drawing: elements, visible forms of characters, colors, grids of cells, line charts. Text from a
// run (prompt, vocabulary, config) enters the page as text nodes and never as markup.

const $ = (id) => document.getElementById(id);

function el(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/** The panels under "More", in order; one is open at a time, and the address names it by `key`.
 * `show(isCurrent)` fills its section, `${key}-section`, after each change of `view` while it is
 * open, and may be async; it returns false if it gave up because `isCurrent()` became false. */
const PANELS = [];

/** Replace the children of an element, and keep the focus on the child with the same index. */
function refill(place, ...children) {
  const stops = () => [...place.querySelectorAll("button, [tabindex]")];
  const focused = stops().indexOf(document.activeElement);
  place.replaceChildren(...children);
  if (focused >= 0) stops()[Math.min(focused, stops().length - 1)]?.focus({ preventScroll: true });
}

/** A word that shows its meaning under the pointer or the focus. */
function term(name, text = name) {
  const span = el("span", { tabIndex: 0 }, text);
  span.dataset.term = name;
  return span;
}

const row = (...cells) => el("tr", {}, ...cells);
const cell = (...content) => el("td", {}, ...content);
const numeral = (text) => el("td", { className: "number" }, text);
const header = (text, scope = "col") => el("th", { scope }, text);
const clamp = (x, low, high) => Math.min(Math.max(x, low), high);
const rem = () => parseFloat(getComputedStyle(document.documentElement).fontSize);
const number = (value, digits = 3) => (Number.isFinite(value) ? value.toFixed(digits) : "–");
const signed = (value, digits = 4) =>
  (Number.isFinite(value) && value >= 0 ? "+" : "") + number(value, digits);
const power = (value) => (Number.isFinite(value) ? value.toExponential(1) : "–");
const count = (value) => value.toLocaleString("en");
const tokensOf = (n) => `${count(n)} token${n === 1 ? "" : "s"}`;

// Make a token visible: spaces, control and combining characters are replaced.
function visible(token) {
  const signs = { "\n": "↵", " ": "␣", "\t": "⇥", "\x7f": "␡" };
  const shown = Array.from(token, (char) => {
    if (Object.hasOwn(signs, char)) return signs[char];
    const code = char.codePointAt(0);
    if (code < 0x20) return String.fromCodePoint(0x2400 + code);
    if (!/[\p{C}\p{Z}]/u.test(char)) return char;
    return `U+${code.toString(16).toUpperCase().padStart(4, "0")}`;
  }).join("");
  return /^\p{M}/u.test(token) ? `◌${shown}` : shown;
}

const quoted = (token) => `'${visible(token)}'`;

const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

// Handle the arrow keys with `move(target, across, down)`, so that the page does not scroll.
const withArrows = (move) => (event) => {
  if (!(event.key in ARROWS)) return;
  move(event.target, ...ARROWS[event.key]);
  event.preventDefault();
  event.stopPropagation();
};

// ------------------------------------------------------------------------------------- colors
// 256 colors through the anchors: as pixels of an image, as CSS, and for each the ink, black or
// white, with the higher contrast, which is at least 4.5.
function ramp(...anchors) {
  const stops = anchors.map((a) => [1, 3, 5].map((i) => parseInt(a.slice(i, i + 2), 16)));
  const colors = { pixels: new Uint32Array(256), css: [], ink: [] };
  for (let i = 0; i < 256; i++) {
    const x = (i / 255) * (stops.length - 1);
    const j = Math.min(Math.floor(x), stops.length - 2);
    const [r, g, b] = stops[j].map((c, n) => Math.round(c + (x - j) * (stops[j + 1][n] - c)));
    colors.pixels[i] = (255 << 24) | (b << 16) | (g << 8) | r; // bytes r, g, b, a
    colors.css.push(`rgb(${r} ${g} ${b})`);
    const [R, G, B] = [r, g, b].map((c) => c / 255)
      .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
    colors.ink.push(0.2126 * R + 0.7152 * G + 0.0722 * B > 0.179 ? "#000000" : "#ffffff");
  }
  return colors;
}

// Lightness is monotonic along the first two, so they can also be read without color.
const THEMES = {
  light: {
    weight: ramp("#f3f5cf", "#c7e6b4", "#7fcdbb", "#3ba3c4", "#225ea8", "#0a1f5c"),
    surprise: ramp("#ffffff", "#fee3c4", "#fbb877", "#e8762b", "#8f3206"),
    score: ramp("#0b3c7a", "#5e9bd0", "#f7f7f5", "#ea9c4a", "#8a3d00"),
    panel: "#ffffff", text: "#55606d", mark: "#c2410c", kept: "#17734f",
  },
  dark: {
    weight: ramp("#00224e", "#35456c", "#666970", "#948e77", "#c8b866", "#fee838"), // cividis
    surprise: ramp("#161b22", "#46301f", "#8f4d1c", "#d97f2c", "#ffcf94"),
    score: ramp("#8cc8ff", "#2f6ea8", "#20262e", "#b0651c", "#ffbe78"),
    panel: "#161b22", text: "#9aa5b3", mark: "#ff9a5c", kept: "#5cc79b",
  },
};
const darkness = matchMedia("(prefers-color-scheme: dark)");
let theme;

// Color an element by a place on a ramp; NaN gets no color.
function shade(element, colors, fraction) {
  const i = Number.isFinite(fraction) ? Math.round(255 * clamp(fraction, 0, 1)) : null;
  element.style.backgroundColor = i === null ? "" : colors.css[i];
  element.style.color = i === null ? "" : colors.ink[i];
}

function scale(colors, ticks) {
  const bar = el("div", { className: "bar" });
  const stops = range(17).map((i) => colors.css[i * 15]);
  bar.style.background = `linear-gradient(to right, ${stops.join(", ")})`;
  const marks = ticks.map(([where, label]) => {
    const mark = el("span", {}, label);
    mark.style.left = `${100 * where}%`;
    return mark;
  });
  return el("div", { className: "scale" }, bar, el("div", { className: "ticks" }, ...marks));
}

const scoreBar = (limit) =>
  scale(theme.score, [[0, number(-limit, 2)], [0.5, "0"], [1, number(limit, 2)]]);

const maskedSwatch = () => el("span", {}, el("span", { className: "swatch masked" }), " masked");

// -------------------------------------------------------------------------------- grids of cells
// Draw one pixel per cell; a clear pixel shows the background.
function picture(canvas, width, height, painter) {
  canvas.width = width;
  canvas.height = height;
  const image = new ImageData(width, height);
  painter(new Uint32Array(image.data.buffer));
  canvas.getContext("2d").putImageData(image, 0, 0);
}

/** Enlarge `source`, a canvas with one pixel per cell, with names along it: `across` and `down` are
 * functions of an index. Cells are square unless `tall` is set; `look`: [column, row] to frame. */
function drawCells(canvas, source, { across, down, tall, look, margin }) {
  const sharp = devicePixelRatio;
  const { width: columns, height: rows } = source;
  const [left, top] = [margin ?? 1.5 * rem(), 1.5 * rem()];
  let side = (canvas.clientWidth - left - 2) / columns;
  if (side > 4) side = Math.floor(side * sharp) / sharp; // cells of equal size
  const step = [side, tall ?? side];
  const height = Math.ceil(top + rows * step[1] + 2);
  Object.assign(canvas.dataset, { left, top, side, tall: step[1] });
  canvas.style.height = `${height}px`;
  canvas.width = Math.round(canvas.clientWidth * sharp);
  canvas.height = Math.round(height * sharp);

  const context = canvas.getContext("2d");
  const area = [left, top, columns * side, rows * step[1]];
  context.scale(sharp, sharp);
  context.fillStyle = theme.panel;
  context.fillRect(0, 0, canvas.clientWidth, height);
  context.clearRect(...area); // what is masked shows the hatching of the background
  context.imageSmoothingEnabled = side * sharp < 1; // enlarged, a cell keeps its one color
  context.drawImage(source, ...area);

  const fitting = Math.min(side, 1.1 * rem());
  const letters = side >= 0.5 * rem();
  const enough = [5, 10, 20, 50, 100, 200, 500].find((n) => n * side > 2.2 * rem()) ?? columns;
  const name = (text, x, y, align, room, here) => {
    context.textAlign = align;
    context.fillStyle = here ? theme.mark : theme.text;
    context.fillText(text, x, y, room);
  };
  context.textBaseline = "middle";
  context.font = letters
    ? `${0.85 * fitting}px ui-monospace, "DejaVu Sans Mono", monospace`
    : `${0.65 * rem()}px system-ui, sans-serif`;
  for (let i = 0; i < columns; i += letters ? 1 : enough) {
    name(letters ? across(i) : `${i}`, left + (i + 0.5) * side, top * 0.6, "center",
      letters ? side : 3 * rem(), look?.[0] === i);
  }
  if (tall) context.font = `${0.75 * rem()}px system-ui, sans-serif`;
  for (let i = 0; i < rows; i += letters || tall ? 1 : enough) {
    name(letters || tall ? down(i) : `${i}`, left * 0.9, top + (i + 0.5) * step[1], "right",
      left * 0.85, look?.[1] === i);
  }
  if (!look) return context;
  const [x, y] = look.map((at, i) => (at === null ? null : [left, top][i] + at * step[i] - 1));
  context.strokeStyle = theme.mark;
  if (y !== null) context.strokeRect(left - 1, y, columns * side + 2, step[1] + 2);
  context.lineWidth = 2.5;
  if (x !== null && y !== null) context.strokeRect(x, y, side + 2, step[1] + 2);
  return context;
}

/** [column, row] under a pointer, or null. */
function cellUnder(canvas, event) {
  const { left, top, side, tall } = canvas.dataset;
  const x = Math.floor((event.offsetX - left) / side);
  const y = Math.floor((event.offsetY - top) / tall);
  return x >= 0 && y >= 0 ? [x, y] : null;
}

// ---------------------------------------------------------------------------- lines
/** Lines of evenly spaced values: `lines` have {y, kind, title}; `names` label the horizontal axis,
 * by default with the steps of the snapshots. `level` is dashed; `here` is the selected snapshot;
 * `marks` are {at, label}; `values` adds a vertical axis. A click calls `choose`. */
function lineChart(box, lines, { label, names = snapshots.map(({ step }) => count(step)),
  here = null, choose, values, level = null, dots = [], marks = [] }) {
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
