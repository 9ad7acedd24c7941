// The report page: what a trained run attends to. No library, no network, nothing global.
// Text of a run (prompt, vocabulary, config) enters the page as text nodes and never as markup.

const $ = (id) => document.getElementById(id);

function trouble(reason) {
  $("trouble").hidden = false;
  $("trouble").textContent =
    `Something failed: ${reason}. The page needs a browser of 2023 or newer.`;
}
addEventListener("error", (event) => trouble(event.message));
addEventListener("unhandledrejection", (event) => trouble(event.reason));

const data = JSON.parse($("data").textContent);
const { L, H, T, D, tokens, vocab, snapshots } = data;
const HEADS = L * H;
const TRIANGLE = (T * (T + 1)) / 2;
const LAST = snapshots.length - 1;
const UNIT = `nats/${data.run.unit}`;
const BLIND_GUESS = Math.log(vocab.length); // surprisal when every token is as likely

// What can be said of a head in one number. `at(i)` has a number per head for snapshot i.
const measures = data.score_info.map((info) => ({
  ...info,
  at: (i) => snapshots[i].scores[info.key],
  chance: (head) => (Array.isArray(info.uniform) ? info.uniform[head] : info.uniform),
  text: (value) => number(value, 2),
}));
for (const kind of data.ablation ? ["zero", "mean"] : []) {
  const instead = kind === "zero" ? "zeros" : "its mean over the text";
  measures.push({
    key: `ablation ${kind}`,
    kind,
    name: `ablation (${kind})`,
    formula: `rise of the validation loss, in nats, when ${instead} replaces what the head adds`,
    source: `measured at step ${snapshots[LAST].step}`,
    at: () => data.ablation[kind],
    error: data.ablation[`${kind}_error`],
    text: (value) => signed(value),
  });
}

const state = {
  head: 0,
  measure: measures[0],
  sorted: false,
  stage: "weights", // or "scores", "masked"
  ownScale: false, // each row to its own maximum
  hover: null, // {q, k} under the pointer; k is null where only a query is meant
  pin: null, // {q, k} that was clicked
};
let now; // the unpacked snapshot on show
let queries, keys; // Int16Array, L * H * T * D, of the last snapshot
let theme;

// ------------------------------------------------------------------------------ small helpers

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

const row = (...cells) => el("tr", {}, ...cells);
const cell = (...content) => el("td", {}, ...content);
const numeral = (text) => el("td", { className: "number" }, text);
const header = (text, scope = "col") => el("th", { scope }, text);
const range = (n) => [...Array(n).keys()];
const clamp = (x, low, high) => Math.min(Math.max(x, low), high);
const largestOf = (numbers) => numbers.reduce((a, b) => Math.max(a, b));
const sum = (numbers) => numbers.reduce((a, b) => a + b, 0);
const rem = () => parseFloat(getComputedStyle(document.documentElement).fontSize);
const headName = (head) => `L${Math.floor(head / H)}H${head % H}`;
const number = (value, digits = 3) => (Number.isFinite(value) ? value.toFixed(digits) : "–");
const signed = (value) => (value >= 0 ? "+" : "") + number(value, 4);
const count = (value) => value.toLocaleString("en");

// A token as something to see: blanks, control and combining characters get a stand-in.
function visible(token) {
  const signs = { "\n": "↵", " ": "·", "\t": "⇥", "\x7f": "␡" };
  if (Object.hasOwn(signs, token)) return signs[token];
  const code = token.codePointAt(0);
  if (/^[\0-\x1f]$/.test(token)) return String.fromCodePoint(0x2400 + code);
  if (/^[\p{C}\p{Z}]$/u.test(token)) return `U+${code.toString(16).toUpperCase().padStart(4, "0")}`;
  return /^\p{M}/u.test(token) ? `◌${token}` : token;
}

const quoted = (token) => `'${visible(token)}'`;
const place = (letter, t) => `${letter} ${t} ${quoted(tokens[t])}`;

// ---------------------------------------------------------------------------------- unpacking

async function unpack(packed, Type) {
  const text = atob(packed);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Type(await new Response(stream).arrayBuffer());
}

const unpacked = new Map(); // index of a snapshot -> promise of its arrays

function unpackSnapshot(index) {
  const { attention, surprisal, candidates, candidate_p } = snapshots[index];
  if (!unpacked.has(index)) {
    const arrays = Promise.all([
      unpack(attention, Uint8Array),
      unpack(surprisal, Float32Array),
      unpack(candidates, Uint16Array),
      unpack(candidate_p, Float32Array),
    ]);
    unpacked.set(index, arrays.then(
      ([codes, surprisal, ids, p]) => ({ index, codes, surprisal, ids, p })));
  }
  return unpacked.get(index);
}

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
    hatch: "#ffffff", line: "#c3c9d1", text: "#5a6573", mark: "#d9480f",
  },
  dark: {
    weight: ramp("#00224e", "#35456c", "#666970", "#948e77", "#c8b866", "#fee838"), // cividis
    surprise: ramp("#161b22", "#46301f", "#8f4d1c", "#d97f2c", "#ffcf94"),
    score: ramp("#8cc8ff", "#2f6ea8", "#20262e", "#b0651c", "#ffbe78"),
    hatch: "#161b22", line: "#414b58", text: "#9aa5b3", mark: "#ff9a5c",
  },
};
const darkness = matchMedia("(prefers-color-scheme: dark)");

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
  el("span", {}, el("span", { className: "swatch masked" }), "masked: comes later, cannot be seen");

function weightScale() {
  // The colour goes with the root of the weight, so that small weights can be told apart.
  const [meaning, ticks] = state.ownScale
    ? ["weight relative to the largest in its row: rows and maps cannot be compared",
      [[0, "0"], [0.5, "¼"], [1, "row's largest"]]]
    : ["attention weight, the same scale everywhere",
      [0, 0.05, 0.25, 0.5, 1].map((weight) => [Math.sqrt(weight), `${weight}`])];
  return [scale(theme.weight, ticks), maskedSwatch(), el("p", {}, meaning)];
}

function scoreScale() {
  const limit = number(largestScore(), 2);
  const [meaning, ...masked] = stage() === "masked"
    ? ["q·k/√D after the mask: what comes later is −∞ and gets no weight", maskedSwatch()]
    : ["q·k/√D before the mask: what comes later is still there"];
  return [scale(theme.score, [[0, `-${limit}`], [0.5, "0"], [1, limit]]), ...masked,
    el("p", {}, `${meaning}; from -${limit} to ${limit} in this head`)];
}

function surpriseScale() {
  const ticks = [0, 0.5, 1].map((part) => [part, number(part * BLIND_GUESS, 1)]);
  return [scale(theme.surprise, ticks),
    el("p", {}, `surprisal in nats; the right end is a blind guess among ${count(vocab.length)}`)];
}

const LEGENDS = {
  weights: weightScale,
  stage: () => (stage() === "weights" ? weightScale() : scoreScale()),
  text: () => (looking() ? weightScale() : surpriseScale()),
  lens: () => [scale(theme.weight, [[0, "0"], [0.5, "0.5"], [1, "1"]]), el("p", {}, "probability")],
};

function showLegends() {
  for (const legend of document.querySelectorAll(".legend")) {
    legend.replaceChildren(...LEGENDS[legend.dataset.shows]());
  }
}

// --------------------------------------------------------------------- attention, from the data

const atLast = () => now.index === LAST;
const stage = () => (atLast() ? state.stage : "weights");
const looking = () => state.hover ?? state.pin;

// q.k / sqrt(D) of every pair, also of those that the mask takes out: T * T, kept for one head.
let scored = { head: -1, scores: null };

function scoresOf(head) {
  if (scored.head === head) return scored.scores;
  const unit = (data.q_scale[head] * data.k_scale[head]) / Math.sqrt(D);
  const scores = new Float32Array(T * T);
  for (let q = 0; q < T; q++) {
    const from = (head * T + q) * D;
    for (let k = 0; k < T; k++) {
      const to = (head * T + k) * D;
      let dot = 0;
      for (let d = 0; d < D; d++) dot += queries[from + d] * keys[to + d];
      scores[q * T + k] = dot * unit;
    }
  }
  scored = { head, scores };
  return scores;
}

const largestScore = () => largestOf(scoresOf(state.head).map(Math.abs)) || 1;

// What softmax does to a row, for the keys that are seen.
function softmaxRow(head, q) {
  const scores = scoresOf(head).slice(q * T, q * T + q + 1);
  const largest = largestOf(scores);
  const exps = scores.map((score) => Math.exp(score - largest));
  const total = sum(exps);
  return { scores, exps, weights: exps.map((e) => e / total) };
}

// The 8-bit codes of a row: 255 times the root of the weight.
function codesOf(head, q) {
  const start = head * TRIANGLE + (q * (q + 1)) / 2;
  return now.codes.subarray(start, start + q + 1);
}

// The weights of a row: from queries and keys where those are kept, else from the codes.
function weightsOf(head, q) {
  if (atLast()) return softmaxRow(head, q).weights;
  return Float32Array.from(codesOf(head, q), (code) => (code / 255) ** 2);
}

// A code is its own place on the colour scale: both go with the root of the weight.
function paintWeights(pixels, head) {
  for (let q = 0; q < T; q++) {
    const codes = codesOf(head, q);
    const stretch = state.ownScale ? 255 / Math.max(1, largestOf(codes)) : 1;
    for (let k = 0; k <= q; k++) {
      pixels[q * T + k] = theme.weight.pixels[Math.round(codes[k] * stretch)];
    }
  }
}

function paintScores(pixels, head) {
  const scores = scoresOf(head), half = 127.5 / largestScore();
  for (let q = 0; q < T; q++) {
    const end = stage() === "masked" ? q + 1 : T;
    for (let i = q * T; i < q * T + end; i++) {
      pixels[i] = theme.score.pixels[Math.round(127.5 + half * scores[i])];
    }
  }
}

// One pixel a pair. What is not painted stays clear, and the hatching behind shows through.
function paint(canvas, painter, head) {
  canvas.width = canvas.height = T;
  const image = new ImageData(T, T);
  painter(new Uint32Array(image.data.buffer), head);
  canvas.getContext("2d").putImageData(image, 0, 0);
}

// ------------------------------------------------------------------------------------- header

function showHeader() {
  const { run, checks } = data;
  document.title = `${run.name} · glassgpt`;
  $("name").textContent = run.name;
  $("result").textContent = `step ${count(run.step)} · validation loss ${number(run.val_loss)} ` +
    `${UNIT} · ${count(run.parameters)} parameters`;
  const { period, first, second } = data.copying;
  $("copying").textContent = `Copying: of random strings of ${count(period)} different tokens, ` +
    `twice, the first copy costs ${number(first)} ${UNIT}, the second ${number(second)}. ` +
    "An induction score is a pattern; this is what it does.";
  $("about").textContent = `${run.about} · ${run.made} · PyTorch ${run.torch}`;

  const plain = (value) => (typeof value === "string" ? value : JSON.stringify(value));
  $("config").append(el("div", { className: "sections" },
    ...Object.entries(run.config).map(([section, fields]) => el("table", {},
      el("caption", {}, el("b", {}, section)),
      ...Object.entries(fields).map(([name, value]) =>
        row(cell(name), cell(el("code", {}, plain(value)))))))));

  const [passed, failed] = ["passed", "failed"].map((verdict) =>
    checks.filter((check) => check.verdict === verdict).length);
  const others = checks.length - passed - failed;
  const summary = $("checks").firstElementChild;
  summary.textContent =
    `${passed} of ${passed + failed} checks passed${others ? `, ${others} not comparable` : ""}`;
  summary.className = failed ? "failed" : "";
  const power = (value) => numeral(value === null ? "–" : value.toExponential(1));
  $("checks").hidden = checks.length === 0;
  $("checks").append(el("table", {},
    row(...["check", "numbers", "relative error", "tolerance", "verdict", "where"].map((name) =>
      header(name))),
    ...checks.map(({ name, dtype, error, tolerance, verdict, where }) => row(
      cell(name), cell(dtype), power(error), power(tolerance),
      el("td", { className: /^(passed|failed)$/.test(verdict) ? verdict : "" }, verdict),
      cell(el("code", {}, where))))));
}

// ----------------------------------------------------------------------------- the grid of heads

const thumbnails = range(HEADS).map((head) =>
  el("button", { type: "button", className: "head", onclick: () => selectHead(head) },
    el("canvas", { className: T > 64 ? "fine" : "" }), el("span")));

const valueOf = (head) => state.measure?.at(now.index)[head] ?? null;
const byValue = (a, b) => (valueOf(b) ?? -Infinity) - (valueOf(a) ?? -Infinity) || a - b;
const order = () => (state.sorted ? range(HEADS).sort(byValue) : range(HEADS));

function showThumbnails() {
  thumbnails.forEach((button, head) => paint(button.firstChild, paintWeights, head));
}

function showGrid() {
  const grid = $("heads"), focused = grid.contains(document.activeElement);
  grid.className = state.sorted ? "sorted" : "layers";
  grid.style.setProperty("--heads", H);
  const wanted = order().map((head) => thumbnails[head]);
  if (wanted.some((button, i) => grid.children[i] !== button)) grid.replaceChildren(...wanted);
  thumbnails.forEach((button, head) => {
    const value = state.measure ? state.measure.text(valueOf(head)) : "";
    button.lastChild.replaceChildren(el("b", {}, headName(head)), el("span", {}, value));
    button.ariaPressed = head === state.head;
    button.ariaLabel =
      `layer ${Math.floor(head / H)} head ${head % H}, ${state.measure?.name} ${value}`;
    button.tabIndex = head === state.head ? 0 : -1; // one stop of the tab key; arrows do the rest
  });
  if (focused) thumbnails[state.head].focus();
  $("measure-about").textContent =
    state.measure ? `${state.measure.formula} (${state.measure.source})` : "";
}

function selectHead(head) {
  state.head = head;
  for (const show of [showGrid, showHead, showText, showScores, showFormation]) show();
  markAblation();
}

function moveHead([across, down]) {
  const heads = order(), at = heads.indexOf(state.head);
  const columns =
    state.sorted ? getComputedStyle($("heads")).gridTemplateColumns.split(" ").length : H;
  const to = at + across + down * columns;
  const leavesLayer = !state.sorted && !down && Math.floor(to / H) !== Math.floor(at / H);
  if (to >= 0 && to < HEADS && !leavesLayer) selectHead(heads[to]);
}

// -------------------------------------------------------------------------- the selected head

const picture = document.createElement("canvas"); // the map at one pixel a pair
const frame = { margin: 0, side: 1 }; // where the cells are on the big canvas, in CSS pixels

function showHead() {
  const name = headName(state.head);
  $("head-title").textContent =
    `Layer ${Math.floor(state.head / H)} head ${state.head % H} (${name})`;
  for (const button of document.querySelectorAll("[data-stage]")) {
    button.ariaPressed = button.dataset.stage === stage();
    button.disabled = !atLast() && button.dataset.stage !== "weights";
  }
  $("stage-note").textContent = atLast()
    ? "Each row is a query: the token that looks. Each column is a key: the token looked at."
    : "Scores need queries and keys, which are kept for the last snapshot only " +
      `(step ${snapshots[LAST].step}).`;
  $("map").ariaLabel = `Attention map of ${name}; arrow keys move in it`;
  paint(picture, stage() === "weights" ? paintWeights : paintScores, state.head);
  showLook();
}

function drawMap() {
  const canvas = $("map"), sharp = devicePixelRatio;
  const margin = 1.5 * rem();
  let side = (canvas.clientWidth - margin - 2) / T;
  if (side > 4) side = Math.floor(side * sharp) / sharp; // cells of equal size
  const height = Math.ceil(margin + side * T + 2);
  Object.assign(frame, { margin, side });
  Object.assign(canvas.dataset, frame);
  canvas.style.height = `${height}px`;
  canvas.width = Math.round(canvas.clientWidth * sharp);
  canvas.height = Math.round(height * sharp);

  const context = canvas.getContext("2d");
  context.scale(sharp, sharp);
  context.fillStyle = hatching(context, sharp);
  context.fillRect(margin, margin, side * T, side * T);
  context.imageSmoothingEnabled = side * sharp < 1; // enlarged, a cell keeps its one colour
  context.drawImage(picture, margin, margin, side * T, side * T);
  labelMap(context);

  const look = looking();
  if (!look) return;
  const [x, y] = [look.k ?? 0, look.q].map((t) => margin + t * side - 1);
  context.strokeStyle = theme.mark;
  context.strokeRect(margin - 1, y, side * T + 2, side + 2);
  context.lineWidth = 2.5;
  if (look.k !== null) context.strokeRect(x, y, side + 2, side + 2);
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

// The tokens themselves where they fit, else their numbers.
function labelMap(context) {
  const { margin, side } = frame, look = looking();
  const letters = side >= 0.5 * rem();
  const enough = [5, 10, 20, 50, 100, 200, 500].find((n) => n * side > 2.2 * rem()) ?? T;
  context.font = letters
    ? `${Math.min(side * 1.1, 0.9 * rem())}px ui-monospace, "DejaVu Sans Mono", monospace`
    : `${0.65 * rem()}px system-ui, sans-serif`;
  context.textBaseline = "middle";
  for (let t = 0; t < T; t += letters ? 1 : enough) {
    const label = letters ? visible(tokens[t]) : `${t}`;
    const middle = margin + (t + 0.5) * side;
    context.textAlign = "center";
    context.fillStyle = t === look?.k ? theme.mark : theme.text;
    context.fillText(label, middle, margin * 0.6, letters ? side : 3 * rem());
    context.textAlign = "right";
    context.fillStyle = t === look?.q ? theme.mark : theme.text;
    context.fillText(label, margin * 0.85, middle, margin * 0.8);
  }
}

function cellAt(event) {
  const [k, q] = [event.offsetX, event.offsetY].map((at) =>
    Math.floor((at - frame.margin) / frame.side));
  return q >= 0 && k >= 0 && q < T && k < T ? { q, k } : null;
}

function inWords({ q, k }) {
  const weights = weightsOf(state.head, q);
  if (k === null) {
    const most = weights.indexOf(largestOf(weights));
    return `${place("q", q)} looks most at ${place("k", most)}: weight ${number(weights[most])}`;
  }
  const parts = [k > q ? "masked, it comes later" : `weight ${number(weights[k])}`];
  if (atLast() && (k <= q || stage() === "scores")) {
    parts.push(`score ${number(scoresOf(state.head)[q * T + k])}`);
  }
  return `${place("q", q)} → ${place("k", k)}: ${parts.join(", ")}`;
}

// How a row of weights comes about: its largest, the rest, and the sum.
function showWorked(q) {
  const columns = atLast() ? softmaxRow(state.head, q) : { weights: weightsOf(state.head, q) };
  const best = range(q + 1).sort((a, b) => columns.weights[b] - columns.weights[a]).slice(0, 5);
  const line = (kind, name, value) => el("tr", { className: kind }, cell(name),
    ...Object.entries(columns).map(([key, column]) => numeral(value(column, key))));
  const digits = (key) => (key === "scores" ? 3 : 4);
  const total = (value) => (column, key) =>
    (key === "scores" ? "" : number(value(column), digits(key)));
  const names = { scores: "score", exps: "exp", weights: "weight" };
  $("worked").replaceChildren(
    el("caption", {}, el("b", {}, `${place("q", q)}: its largest weights`)),
    line("names", "key", (_, key) => names[key]),
    ...range(5).map((i) => i < best.length // always five lines, so that nothing jumps
      ? line("", place("k", best[i]), (column, key) => number(column[best[i]], digits(key)))
      : line("", "\u00a0", () => "")),
    line("rest", `${q + 1 - best.length} more`,
      total((column) => Math.max(0, sum(column) - sum(best.map((k) => column[k]))))),
    line("rest", "sum", total(sum)));
  $("worked-note").textContent = atLast()
    ? "score = q·k/√D, exp = exp(score − the largest), weight = exp / sum"
    : "weights as they are kept, in 8 bits: right to 0.004 or better";
}

// ------------------------------------------------------------------------------------ the text

const spans = tokens.map((token, t) => {
  const shown = visible(token);
  const className = shown === token ? "token" : "token sign";
  const span = el("span", { className, role: "button" }, shown);
  span.dataset.t = t;
  return span;
});

function buildText() {
  spans.forEach((span, t) => {
    $("text").append(span);
    if (tokens[t] === "\n") $("text").append(el("br"));
    else if (tokens[t] === " ") $("text").append(el("wbr")); // lines break between words
  });
}

function showText() {
  const look = looking();
  const weights = look && weightsOf(state.head, look.q);
  const largest = look && state.ownScale ? largestOf(weights) : 1;
  spans.forEach((span, t) => {
    span.classList.toggle("masked", t > look?.q);
    span.classList.toggle("here", t === look?.q);
    if (look) shade(span, theme.weight, Math.sqrt(weights[t] / largest)); // none where masked
    else shade(span, theme.surprise, now.surprisal[t] / BLIND_GUESS);
    span.tabIndex = t === (look?.q ?? 0) ? 0 : -1;
    span.ariaLabel = `${t} ${visible(tokens[t])}, surprisal ${number(now.surprisal[t], 2)}`;
  });
  $("text-note").textContent = look
    ? `Colour: what ${headName(state.head)} looks at from ${place("token", look.q)}.`
    : "Colour: how much each token surprised the model. Point at one to see where the selected " +
      "head looks from there; click to keep it.";
  showNext(look?.q ?? T - 1);
}

function showNext(t) {
  const own = now.surprisal[t], next = tokens[t + 1];
  const rows = range(5).map((i) => {
    const token = vocab[now.ids[t * 5 + i]], p = now.p[t * 5 + i];
    const gauge = el("div", { className: "gauge" });
    gauge.style.width = `${100 * p}%`;
    return el("tr", { className: token === next ? "came" : "" },
      cell(visible(token)), numeral(number(p)), cell(gauge));
  });
  $("next").replaceChildren(
    el("p", {}, el("b", {}, place("token", t)), ": ", Number.isNaN(own)
      ? "the first, predicted from nothing"
      : `surprisal ${number(own)} nats, probability ${number(Math.exp(-own))}`),
    el("table", {}, el("caption", { className: "quiet" }, "Expected after it. ", t + 1 < T
      ? `Came next: ${quoted(next)}, probability ${number(Math.exp(-now.surprisal[t + 1]))}.`
      : "The text ends here."), ...rows));
}

// Point at a query (and a key), or at nothing.
function pointAt(hover) {
  if (hover?.q === state.hover?.q && hover?.k === state.hover?.k) return;
  state.hover = hover;
  showLook();
  showText();
}

// Keep what is pointed at, or let go of it.
function pin(where) {
  const again = where && state.pin?.q === where.q && state.pin.k === where.k;
  state.pin = again ? null : where;
  state.hover = null;
  showLook();
  showText();
}

function showLook() {
  const look = looking();
  drawMap();
  $("readout").textContent = look ? inWords(look) : "Point at a cell, or at a token of the text.";
  showWorked(look?.q ?? T - 1);
  showLegends();
}

// ------------------------------------------------------------------------------------ training

const position = () => Number($("slider").value); // ahead of `now` while that is unpacked

async function goTo(index) {
  const wanted = clamp(index, 0, LAST);
  $("slider").value = wanted;
  const snapshot = await unpackSnapshot(wanted);
  if (position() !== wanted) return; // the slider has moved on meanwhile
  now = snapshot;
  showSnapshot();
}

function showSnapshot() {
  const { step, val_loss, prompt_loss } = snapshots[now.index];
  const words = `step ${count(step)} · ${count(data.sequences)} validation sequences ` +
    `${number(val_loss)} · this text ${number(prompt_loss)} ${UNIT}`;
  $("moment").textContent = $("slider").ariaValueText = words;
  for (const show of [showThumbnails, showGrid, showHead, showText, showScores]) show();
  showLoss();
  showFormation();
  document.body.dataset.snapshot = now.index;
}

let playing = null;

function play() {
  if (playing === null) {
    if (position() === LAST) goTo(0);
    playing = setInterval(() => (position() === LAST ? play() : goTo(position() + 1)), 700);
  } else {
    clearInterval(playing);
    playing = null;
  }
  $("play").textContent = playing === null ? "play" : "stop";
}

// Steps on a logarithmic axis that has room for step 0.
const snapshotSteps = snapshots.map((snapshot) => snapshot.step);
const steps = [...snapshotSteps, ...data.curve.step];
const [firstStep, lastStep] = [Math.min(...steps), Math.max(...steps)];
const unitStep = Math.min(...steps.filter((step) => step > 0), Math.max(lastStep, 1));
const logStep = (step) => Math.log1p(step / unitStep) - Math.log1p(firstStep / unitStep);

// Lines over training. `lines` have {x: steps, y: values, kind, title}; `level` is dashed.
function lineChart(box, lines, { label, axes = false, level = null, dots = [] }) {
  const width = box.clientWidth, height = box.clientHeight;
  const values = [...lines.flatMap((line) => line.y), level].filter(Number.isFinite);
  if (!width || !values.length) return;
  const [left, right, top, bottom] =
    axes ? [2.6, 1, 0.6, 1.5].map((pad) => pad * rem()) : [5, 5, 5, 5];
  const low = Math.min(...values), high = Math.max(...values, low + 1e-6);
  const x = (step) => left + (logStep(step) / (logStep(lastStep) || 1)) * (width - left - right);
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
    for (const step of roundSteps().filter((step) => step >= firstStep && step <= lastStep)) {
      if (x(step) < free) continue;
      chart.append(text(x(step), height - 3, "middle", count(step)));
      free = x(step) + 3 * rem();
    }
  }
  if (Number.isFinite(level)) chart.append(across(level, "chance"));
  const here = x(snapshotSteps[now.index]);
  chart.append(svg("line", { class: "moment", x1: here, x2: here, y1: top, y2: height - bottom }));
  for (const line of lines) {
    const known = range(line.x.length).filter((i) => Number.isFinite(line.y[i]));
    const points = known.map((i) => `${x(line.x[i])},${y(line.y[i])}`).join(" ");
    const kind = `line ${line.kind}`;
    chart.append(svg("polyline", { class: kind, points }, svg("title", {}, line.title)));
  }
  dots.forEach((value, i) => {
    const [kind, r] = i === now.index ? ["dot now", 4.5] : ["dot", 2.5];
    if (Number.isFinite(value)) {
      chart.append(svg("circle", { class: kind, cx: x(snapshotSteps[i]), cy: y(value), r }));
    }
  });
  box.replaceChildren(chart);
  box.onclick = (event) => {
    const distance = (i) =>
      Math.abs(x(snapshotSteps[i]) - (event.clientX - box.getBoundingClientRect().left));
    goTo(range(snapshots.length).reduce((a, b) => (distance(b) < distance(a) ? b : a)));
  };
}

// A few round numbers between low and high.
function roundNumbers(low, high) {
  const power = 10 ** Math.floor(Math.log10((high - low) / 5));
  const step = power * [1, 2, 5, 10].find((n) => (high - low) / (n * power) <= 5);
  return range(7).map((i) => (Math.ceil(low / step) + i) * step).filter((value) => value <= high);
}

const roundSteps = () => [0, ...range(9).flatMap((power) => [1, 2, 5].map((n) => n * 10 ** power))];

function showLoss() {
  if (LAST === 0) return;
  const dots = snapshots.map((snapshot) => snapshot.prompt_loss);
  lineChart($("loss"), [
    { x: snapshotSteps, y: dots, kind: "", title: "loss on this text" },
    { x: data.curve.step, y: data.curve.val_loss, kind: "validation", title: "validation loss" },
  ], { label: "Loss over training", dots });
}

// How the chosen score of every head came about.
function showFormation() {
  const { measure, head } = state;
  $("formation").hidden = LAST === 0 || !measure;
  if ($("formation").hidden) return;
  $("formation-chart").hidden = Boolean(measure.error);
  $("formation-note").textContent = measure.error
    ? "Ablation is measured for the last snapshot only. Choose a score to see it form."
    : `${measure.name} of every head against the step (logarithmic); thick: ${headName(head)}; ` +
      "dashed: chance, from attention spread evenly. Click to go to a step.";
  if (measure.error) return;
  const others = range(HEADS).filter((other) => other !== head);
  const lines = [...others, head].map((each) => ({
    x: snapshotSteps,
    y: range(snapshots.length).map((i) => measure.at(i)[each]),
    kind: each === head ? "chosen" : "",
    title: headName(each),
  }));
  const label = `${measure.name} of every head over training`;
  lineChart($("formation-chart"), lines, { axes: true, level: measure.chance(head), label });
}

// ------------------------------------------------------------------- scores of the selected head

const withError = ({ at, error }, head) => `${signed(at(LAST)[head])} ± ${number(error[head], 4)}`;

function showScores() {
  const { head, measure } = state;
  $("scores-title").textContent =
    `Scores of ${headName(head)}${LAST ? ", and how they formed" : ""}`;
  const rows = measures.map((each) => el("tr", { className: each === measure ? "shown" : "" },
    cell(each.name, el("small", {}, `${each.formula} (${each.source})`)),
    numeral(each.error ? withError(each, head) : number(each.at(now.index)[head])),
    numeral(each.error ? "" : number(each.chance(head)))));
  $("scores").replaceChildren(row(header("score"), header("here"), header("chance")), ...rows);
}

// ------------------------------------------------------------------------------------ the lens

let lens; // {ids, p, truth} unpacked, and the cells by layer

async function buildLens() {
  const { names, loss, ids, p, p_true } = data.lens;
  const arrays = await Promise.all(
    [unpack(ids, Uint16Array), unpack(p, Float32Array), unpack(p_true, Float32Array)]);
  lens = { ids: arrays[0], p: arrays[1], truth: arrays[2] };
  lens.cells = names.map((_, layer) => range(T).map((t) => {
    const token = vocab[lens.ids[(layer * T + t) * 3]];
    const spot = el("td", { className: token === tokens[t + 1] ? "came" : "" }, visible(token));
    Object.assign(spot.dataset, { layer, t });
    spot.tabIndex = layer + t === 0 ? 0 : -1;
    return spot;
  }));
  const came = range(T).map((t) => header(t + 1 < T ? visible(tokens[t + 1]) : ""));
  $("lens").replaceChildren(
    el("thead", {}, row(header("read"), ...tokens.map((token) => header(visible(token))))),
    el("tbody", {}, ...names.map((name, layer) =>
      row(header(`${name}, ${number(loss[layer], 2)} nats`, "row"), ...lens.cells[layer]))),
    el("tfoot", {}, row(header("came next"), ...came)));
  $("lens-readout").textContent = "Point at a cell. Nats: the mean loss on some validation sequences.";
  paintLens();
  document.body.dataset.lens = "ready";
}

function paintLens() {
  lens.cells.flat().forEach((spot, i) => shade(spot, theme.weight, lens.p[i * 3]));
}

function readLens(spot) {
  if (!spot) return;
  const layer = Number(spot.dataset.layer), t = Number(spot.dataset.t), at = layer * T + t;
  const best = [3 * at, 3 * at + 1, 3 * at + 2].map((i) =>
    `${quoted(vocab[lens.ids[i]])} ${number(lens.p[i])}`);
  const came = t + 1 < T
    ? `came next: ${quoted(tokens[t + 1])} ${number(lens.truth[at])}` : "the text ends here";
  $("lens-readout").textContent =
    `${data.lens.names[layer]}, ${place("token", t)}: ${best.join(", ")}; ${came}`;
}

// -------------------------------------------------------------------------------- the ablation

function showAblation() {
  const kinds = measures.filter((measure) => measure.error);
  $("ablation").hidden = !kinds.length;
  if (!kinds.length) {
    $("ablation-note").textContent = "Not measured for this page.";
    return;
  }
  $("ablation-note").textContent =
    `Rise of the validation loss (${number(data.ablation.loss)} ${UNIT} at step ` +
    `${count(snapshots[LAST].step)}) when what one head adds is replaced, by zeros or by its ` +
    `mean, with the standard error over ${count(data.sequences)} sequences of it.`;
  const ends = kinds.flatMap(({ at, error }) =>
    range(HEADS).flatMap((head) => [-1, 1].map((side) => at(LAST)[head] + side * error[head])));
  const low = Math.min(0, ...ends), span = Math.max(1e-9, ...ends) - low;
  const stretch = (className, from, to) => {
    const part = el("div", { className });
    part.style.left = `${(100 * (Math.min(from, to) - low)) / span}%`;
    part.style.width = `${(100 * Math.abs(to - from)) / span}%`;
    return part;
  };
  const line = (measure, head) => {
    const value = measure.at(LAST)[head], error = measure.error[head];
    return el("div", { className: `line ${measure.kind}` },
      el("span", { className: "track" }, stretch("rise", 0, value), stretch("base", 0, 0),
        stretch("error", value - error, value + error)),
      el("span", { className: "value" }, `${measure.kind} ${withError(measure, head)}`));
  };
  const heads = range(HEADS).sort((a, b) => kinds[0].at(LAST)[b] - kinds[0].at(LAST)[a]);
  $("ablation").replaceChildren(...heads.map((head) => el("button",
    { type: "button", value: head, onclick: () => selectHead(head) },
    el("b", {}, headName(head)), ...kinds.map((kind) => line(kind, head)))));
  markAblation();
}

function markAblation() {
  for (const button of $("ablation").children) {
    button.ariaPressed = Number(button.value) === state.head;
  }
}

// --------------------------------------------------------------------------- pointer and keys

const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

// Let `move(across, down)` have the arrow keys, and the page not.
const withArrows = (move) => (event) => {
  if (!(event.key in ARROWS)) return;
  move(event.target, ...ARROWS[event.key]);
  event.preventDefault();
  event.stopPropagation();
};

function listen() {
  $("measure").append(...measures.map(({ key, name }) => el("option", { value: key }, name)));
  $("measure").onchange = () => {
    state.measure = measures[$("measure").selectedIndex];
    for (const show of [showGrid, showScores, showFormation]) show();
  };
  $("order").onchange = () => {
    state.sorted = $("order").value === "score";
    showGrid();
  };
  $("own-scale").onchange = () => setOwnScale($("own-scale").checked);
  for (const button of document.querySelectorAll("[data-stage]")) {
    button.onclick = () => setStage(button.dataset.stage);
  }
  $("slider").oninput = () => goTo(position());
  $("play").onclick = play;
  $("help").onclick = () => $("keys").showModal();

  Object.assign($("map"), {
    onpointermove: (event) => pointAt(cellAt(event)),
    onpointerleave: () => pointAt(null),
    onclick: (event) => pin(cellAt(event)),
    onkeydown: withArrows((_, across, down) => {
      const { q, k } = looking() ?? { q: T - 1, k: T - 1 };
      pin({ q: clamp(q + down, 0, T - 1), k: clamp((k ?? q) + across, 0, T - 1) });
    }),
  });

  const tokenAt = ({ target: { dataset } }) =>
    (dataset.t ? { q: Number(dataset.t), k: null } : null);
  Object.assign($("text"), {
    onpointerover: (event) => pointAt(tokenAt(event)),
    onpointerleave: () => pointAt(null),
    onclick: (event) => tokenAt(event) && pin(tokenAt(event)),
    onkeydown: withArrows((span, across, down) =>
      spans[clamp(Number(span.dataset.t) + across + down, 0, T - 1)].focus()),
    onkeyup: (event) => event.key === "Enter" && pin(tokenAt(event)),
  });
  $("text").addEventListener("focusin", (event) =>
    event.target.matches(":focus-visible") && pointAt(tokenAt(event)));
  $("text").addEventListener("focusout", () => pointAt(null));

  $("lens").onpointerover = (event) => readLens(event.target.closest("td"));
  $("lens").addEventListener("focusin", (event) => readLens(event.target.closest("td")));
  $("lens").onkeydown = withArrows((spot, across, down) => {
    const cells = lens.cells[clamp(Number(spot.dataset.layer) + down, 0, L)];
    const next = cells[clamp(Number(spot.dataset.t) + across, 0, T - 1)];
    spot.tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
  });

  addEventListener("keydown", onKey);
  darkness.addEventListener("change", showAll);
  const sizes = new ResizeObserver(drawSized);
  for (const id of ["map", "name"]) sizes.observe($(id));
}

const STAGES = ["scores", "masked", "weights"];
const KEYS = {
  "[": () => goTo(position() - 1),
  ",": () => goTo(position() - 1),
  "]": () => goTo(position() + 1),
  ".": () => goTo(position() + 1),
  p: () => LAST && play(),
  s: () => setStage(STAGES[(STAGES.indexOf(stage()) + 1) % 3]),
  n: () => setOwnScale(!state.ownScale),
  "?": () => $("keys").showModal(),
  Escape: () => pin(null),
};

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || $("keys").open) return;
  if (event.target.matches("select")) return; // letters and arrows choose there
  const way = ARROWS[event.key];
  if (way && !event.target.matches("input[type=range]")) {
    // Up and down scroll the page as ever, unless the heads they would move are in view.
    const { top, bottom } = $("heads").getBoundingClientRect();
    if (way[1] && (bottom < 0 || top > innerHeight)) return;
    moveHead(way);
    event.preventDefault();
  } else if (Object.hasOwn(KEYS, event.key)) {
    KEYS[event.key]();
    event.preventDefault();
  }
}

function setStage(name) {
  if (!atLast()) return;
  state.stage = name;
  showHead();
}

function setOwnScale(on) {
  state.ownScale = $("own-scale").checked = on;
  for (const show of [showThumbnails, showHead, showText]) show();
}

// --------------------------------------------------------------------------------------- start

// What is drawn to the size of its place.
function drawSized() {
  for (const draw of [drawMap, showLoss, showFormation]) draw();
}

function showAll() {
  theme = darkness.matches ? THEMES.dark : THEMES.light;
  showSnapshot();
  showAblation();
  if (lens) paintLens();
}

showHeader();
buildText();
$("slider").max = LAST;
$("slider").value = LAST;
if (LAST === 0) {
  $("training").className = "still";
  for (const id of ["play", "slider", "loss"]) $(id).hidden = true;
  $("one-snapshot").hidden = false;
}
[now, queries, keys] = await Promise.all(
  [unpackSnapshot(LAST), unpack(data.q, Int16Array), unpack(data.k, Int16Array)]);
state.head = range(HEADS).sort(byValue)[0]; // begin with the clearest by the first score
showAll();
listen();
document.body.dataset.ready = "ready";
await buildLens();
