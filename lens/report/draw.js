// What panels are drawn with: elements, stand-ins for characters, colours, grids of cells, lines
// over training. Text of a run (prompt, vocabulary, config) enters the page as text nodes and never
// as markup.

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

/** Put children in the place of those that are there; the focus stays where it was among them. */
function refill(place, ...children) {
  const stops = () => [...place.querySelectorAll("button, [tabindex]")];
  const focused = stops().indexOf(document.activeElement);
  place.replaceChildren(...children);
  if (focused >= 0) stops()[Math.min(focused, stops().length - 1)]?.focus({ preventScroll: true });
}

/** A word with what it means under the pointer and the focus. */
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

// A token as something to see: blanks, control and combining characters get a stand-in.
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

// ------------------------------------------------------------------------------------ colours

// 256 colours through the anchors: as pixels of an image, as CSS, and the ink to write on each.
function ramp(...anchors) {
  const stops = anchors.map((a) => [1, 3, 5].map((i) => parseInt(a.slice(i, i + 2), 16)));
  const colours = { pixels: new Uint32Array(256), css: [], ink: [] };
  for (let i = 0; i < 256; i++) {
    const x = (i / 255) * (stops.length - 1);
    const j = Math.min(Math.floor(x), stops.length - 2);
    const [r, g, b] = stops[j].map((c, n) => Math.round(c + (x - j) * (stops[j + 1][n] - c)));
    colours.pixels[i] = (255 << 24) | (b << 16) | (g << 8) | r; // bytes r, g, b, a
    colours.css.push(`rgb(${r} ${g} ${b})`);
    colours.ink.push(0.299 * r + 0.587 * g + 0.114 * b > 135 ? "#10151b" : "#ffffff");
  }
  return colours;
}

// Lightness only rises or only falls along the first two, so they also read without colour.
const THEMES = {
  light: {
    weight: ramp("#f3f5cf", "#c7e6b4", "#7fcdbb", "#3ba3c4", "#225ea8", "#0a1f5c"),
    surprise: ramp("#ffffff", "#fee3c4", "#fbb877", "#e8762b", "#8f3206"),
    score: ramp("#0b3c7a", "#5e9bd0", "#f7f7f5", "#ea9c4a", "#8a3d00"),
    hatch: "#ffffff", line: "#c3c9d1", text: "#5a6573", mark: "#d9480f", kept: "#1a7f5a",
  },
  dark: {
    weight: ramp("#00224e", "#35456c", "#666970", "#948e77", "#c8b866", "#fee838"), // cividis
    surprise: ramp("#161b22", "#46301f", "#8f4d1c", "#d97f2c", "#ffcf94"),
    score: ramp("#8cc8ff", "#2f6ea8", "#20262e", "#b0651c", "#ffbe78"),
    hatch: "#161b22", line: "#414b58", text: "#9aa5b3", mark: "#ff9a5c", kept: "#5cc79b",
  },
};
const darkness = matchMedia("(prefers-color-scheme: dark)");
let theme;

// Colour an element by a place on a ramp; what is not a number gets no colour.
function shade(element, colours, fraction) {
  const i = Number.isFinite(fraction) ? Math.round(255 * clamp(fraction, 0, 1)) : null;
  element.style.backgroundColor = i === null ? "" : colours.css[i];
  element.style.color = i === null ? "" : colours.ink[i];
}

function scale(colours, ticks) {
  const bar = el("div", { className: "bar" });
  const stops = range(17).map((i) => colours.css[i * 15]);
  bar.style.background = `linear-gradient(to right, ${stops.join(", ")})`;
  const marks = ticks.map(([where, label]) => {
    const mark = el("span", {}, label);
    mark.style.left = `${100 * where}%`;
    return mark;
  });
  return el("div", { className: "scale" }, bar, el("div", { className: "ticks" }, ...marks));
}

const maskedSwatch = () =>
  el("span", {}, el("span", { className: "swatch masked" }), "masked: cannot be seen from there");

// -------------------------------------------------------------------------------- grids of cells

// One pixel a cell; what is left clear shows the hatching behind.
function picture(canvas, width, height, painter) {
  canvas.width = width;
  canvas.height = height;
  const image = new ImageData(width, height);
  painter(new Uint32Array(image.data.buffer));
  canvas.getContext("2d").putImageData(image, 0, 0);
}

/**
 * A picture enlarged, with names along it.
 *
 * @param source canvas with a pixel a cell
 * @param across, down names of columns and rows, each a function of its index
 * @param from, size of what is shown of it: [column, row], [columns, rows]
 * @param tall height of a cell; without it cells are square
 * @param look [column, row] to frame, or null in either
 */
function drawCells(canvas, source, { across, down, from = [0, 0], size, tall, look, margin }) {
  const sharp = devicePixelRatio;
  const [columns, rows] = size ?? [source.width, source.height];
  const [left, top] = [margin ?? 1.5 * rem(), 1.5 * rem()];
  let side = (canvas.clientWidth - left - 2) / columns;
  if (side > 4) side = Math.floor(side * sharp) / sharp; // cells of equal size
  const step = [side, tall ?? side];
  const height = Math.ceil(top + rows * step[1] + 2);
  Object.assign(canvas.dataset, { left, top, side, tall: step[1], column: from[0], row: from[1] });
  canvas.style.height = `${height}px`;
  canvas.width = Math.round(canvas.clientWidth * sharp);
  canvas.height = Math.round(height * sharp);

  const context = canvas.getContext("2d");
  const area = [left, top, columns * side, rows * step[1]];
  context.scale(sharp, sharp);
  context.fillStyle = hatching(context, sharp);
  context.fillRect(...area);
  context.imageSmoothingEnabled = side * sharp < 1; // enlarged, a cell keeps its one colour
  context.drawImage(source, ...from, columns, rows, ...area);

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
    const at = from[0] + i;
    name(letters ? across(at) : `${at}`, left + (i + 0.5) * side, top * 0.6, "center",
      letters ? side : 3 * rem(), look?.[0] === at);
  }
  if (tall) context.font = `${0.75 * rem()}px system-ui, sans-serif`;
  for (let i = 0; i < rows; i += letters || tall ? 1 : enough) {
    const at = from[1] + i;
    name(letters || tall ? down(at) : `${at}`, left * 0.9, top + (i + 0.5) * step[1], "right",
      left * 0.85, look?.[1] === at);
  }
  if (!look) return context;
  const [x, y] = look.map((at, i) =>
    (at === null ? null : [left, top][i] + (at - from[i]) * step[i] - 1));
  context.strokeStyle = theme.mark;
  if (y !== null) context.strokeRect(left - 1, y, columns * side + 2, step[1] + 2);
  context.lineWidth = 2.5;
  if (x !== null && y !== null) context.strokeRect(x, y, side + 2, step[1] + 2);
  return context;
}

/** [column, row] under a pointer, or null. */
function cellUnder(canvas, event) {
  const { left, top, side, tall, column, row } = canvas.dataset;
  const x = Math.floor((event.offsetX - left) / side);
  const y = Math.floor((event.offsetY - top) / tall);
  return x >= 0 && y >= 0 ? [x + Number(column), y + Number(row)] : null;
}

function hatching(context, sharp) {
  const size = Math.round(6 * sharp);
  const tile = el("canvas", { width: size, height: size });
  const pen = tile.getContext("2d");
  pen.fillStyle = theme.hatch;
  pen.fillRect(0, 0, size, size);
  pen.strokeStyle = theme.line;
  pen.lineWidth = sharp;
  for (const shift of [-size, 0, size]) { // the neighbours' lines too, so that they meet
    pen.moveTo(shift - 1, size + 1);
    pen.lineTo(shift + size + 1, -1);
  }
  pen.stroke();
  const pattern = context.createPattern(tile, "repeat");
  pattern.setTransform(new DOMMatrix().scale(1 / sharp));
  return pattern;
}

// ---------------------------------------------------------------------------- lines over training

const snapshotSteps = snapshots.map((snapshot) => snapshot.step);

// Steps on an axis that gives room to the beginning, as the snapshots do, and to step 0.
const along = (step) => Math.cbrt(step / (snapshotSteps[LAST] || 1));

/**
 * Lines over training. `lines` have {y: a value for each snapshot, kind, title}; `level` is dashed;
 * `here` is the snapshot on show. A click calls `choose` with the nearest snapshot.
 */
function lineChart(box, lines, { label, here, choose, axes = false, level = null, dots = [] }) {
  const width = box.clientWidth, height = box.clientHeight;
  const values = [...lines.flatMap((line) => line.y), level].filter(Number.isFinite);
  if (!width || !values.length) return;
  const [left, right, top, bottom] =
    axes ? [2.6, 1, 0.6, 1.5].map((pad) => pad * rem()) : [5, 5, 5, 5];
  const low = Math.min(...values), high = Math.max(...values, low + 1e-6);
  const x = (step) => left + along(step) * (width - left - right);
  const y = (value) => top + ((high - value) / (high - low)) * (height - top - bottom);
  const across = (value, kind) =>
    svg("line", { class: kind, x1: left, x2: width - right, y1: y(value), y2: y(value) });
  const text = (x, y, anchor, words) => svg("text", { x, y, "text-anchor": anchor }, words);
  const chart = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });

  if (axes) {
    for (const value of roundNumbers(low, high)) {
      chart.append(across(value, "axis"), text(left - 6, y(value) + 4, "end", number(value, 2)));
    }
    let free = -Infinity; // from where on the next label has room
    for (const step of roundSteps().filter((step) => step <= snapshotSteps[LAST])) {
      if (x(step) < free) continue;
      chart.append(text(x(step), height - 3, "middle", count(step)));
      free = x(step) + 3 * rem();
    }
  }
  if (Number.isFinite(level)) chart.append(across(level, "chance"));
  const now = x(snapshotSteps[here]);
  chart.append(svg("line", { class: "moment", x1: now, x2: now, y1: top, y2: height - bottom }));
  for (const line of lines) {
    const there = range(snapshots.length).filter((i) => Number.isFinite(line.y[i]));
    const points = there.map((i) => `${x(snapshotSteps[i])},${y(line.y[i])}`).join(" ");
    const kind = `line ${line.kind}`;
    chart.append(svg("polyline", { class: kind, points }, svg("title", {}, line.title)));
  }
  dots.forEach((value, i) => {
    const [kind, r] = i === here ? ["dot now", 4.5] : ["dot", 2.5];
    if (Number.isFinite(value)) {
      chart.append(svg("circle", { class: kind, cx: x(snapshotSteps[i]), cy: y(value), r }));
    }
  });
  box.replaceChildren(chart);
  box.onclick = (event) => {
    const distance = (i) =>
      Math.abs(x(snapshotSteps[i]) - (event.clientX - box.getBoundingClientRect().left));
    choose(range(snapshots.length).reduce((a, b) => (distance(b) < distance(a) ? b : a)));
  };
}

// A few round numbers between low and high.
function roundNumbers(low, high) {
  const power = 10 ** Math.floor(Math.log10((high - low) / 5));
  const step = power * [1, 2, 5, 10].find((n) => (high - low) / (n * power) <= 5);
  return range(7).map((i) => (Math.ceil(low / step) + i) * step).filter((value) => value <= high);
}

const roundSteps = () => [0, ...range(9).flatMap((power) => [1, 2, 5].map((n) => n * 10 ** power))];
