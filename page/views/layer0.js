// The panel that shows a head of layer 0 from its weights alone.

import { clamp, indexOfLargest, largestOf, range, ranked } from "../engine/numbers.js";
import { Layer0, unreadable } from "../engine/layer0.js";
import { config, engineFor, headName, sizes, vocab } from "../run.js";
import { state } from "../state.js";
import { cellUnder, drawCells, picture } from "./cells.js";
import { lineChart } from "./chart.js";
import { scoreBar, theme } from "./colors.js";
import { $, addPanel, el, withArrows } from "./elements.js";
import { number, quoted, signed, visible } from "./format.js";

const { H, B, V } = sizes;
let pairAlone = []; // ids of a query and a key
const whyNot = unreadable(config, V);
const embedsPositions = config.positions === "learned";
const sliders = { none: [], rotary: ["distance"], learned: ["query position", "key position"] }[
  config.positions].map((label) => el("label", {}, `${label} `,
  el("input", { type: "range", min: 0, max: B - 1, value: label === "query position" ? B - 1 : 1 }),
  el("span")));
const averaged = el("input", { type: "checkbox" });
const elsewhere = el("span", { className: "quiet" }); // why the selected head is not shown
const allTokens = el("input", { type: "checkbox" });
const headChoice = el("select", {}, ...range(H).map((h) =>
  el("option", { value: h }, headName(h))));
let followed; // the head that was selected when the choice last followed it
const tables = ["scores", "logits"].map((what) => {
  const canvas = el("canvas", { tabIndex: 0, role: "img" });
  canvas.id = `alone-${what}`;
  return { canvas, legend: el("div"), source: el("canvas") };
});
const curve = el("div", { className: "chart", id: "alone-curve" });
const readAlone = el("output", { id: "alone-readout" });

addPanel("alone-section", whyNot
  ? `The heads of layer 0 cannot be read from the weights alone: ${whyNot}.`
  : "What layer 0 reads at a position depends only on the token there, so the attention scores " +
    "and logit contributions of its heads are tables over tokens, and no text is needed. Later " +
    "layers read more than one token and have no such table. Click a cell to choose a pair.",
...(whyNot ? [] : [
  el("div", { className: "controls" }, el("label", {}, "head ", headChoice), elsewhere, ...sliders,
    ...(sliders.length ? [el("label", {}, averaged,
      embedsPositions ? " average over key positions" : " average over distances")] : []),
    el("label", {}, allTokens, " all tokens of the vocabulary")),
  el("div", { className: "pair" }, ...tables.map(({ canvas, legend }, i) => el("figure", {},
    el("figcaption", { className: "small" }, i
      ? "What the head adds to each logit (column) when it attends to a token (row), per unit of " +
        "weight, by the direct path, without the scale of the final norm"
      : "Attention score of a query (row) with a key (column), before the softmax"),
    canvas, legend))),
  readAlone, ...(sliders.length ? [curve] : []),
]));

const chosenPlaces = () => sliders.map((label) => Number(label.querySelector("input").value));

/** Positions of query and key, as lists to average over. */
function positionsAlone() {
  const [first = 0, second = 0] = chosenPlaces();
  if (!embedsPositions) return [averaged.checked ? range(B) : [first], [0]];
  return [[first], averaged.checked ? range(first + 1) : [Math.min(first, second)]];
}

const idsAlone = () =>
  (allTokens.checked ? range(V) : [...new Set(state.view.pass.ids)].sort((a, b) => a - b));

export function showAlone() {
  if (whyNot || !state.view || !$("alone-section").offsetParent) return;
  sliders.forEach((label, i) => { label.lastChild.textContent = chosenPlaces()[i]; });
  elsewhere.textContent = state.head < H ? ""
    : `The selected ${headName(state.head)} is not in layer 0.`;
  const ids = idsAlone();
  const h = Number(headChoice.value), n = ids.length;
  const layer = new Layer0(engineFor("plain", state.view.snapshot), ids);
  const [queries, keys] = positionsAlone();
  const logits = layer.logits(h, keys[0]);
  const shown = [layer.scores(h, queries, keys),
    Float32Array.from({ length: n * n }, (_, i) => logits[Math.floor(i / n) * V + ids[i % n]])];
  const most = indexOfLargest(shown[0]), { score } = theme();
  let [q, k] = pairAlone.map((id) => ids.indexOf(id));
  if (!(q >= 0 && k >= 0)) [q, k] = [Math.floor(most / n), most % n];
  pairAlone = [ids[q], ids[k]];
  tables.forEach(({ canvas, legend, source }, i) => {
    const limit = largestOf(shown[i].map(Math.abs)) || 1;
    picture(source, n, n, (pixels) => shown[i].forEach((x, at) => {
      pixels[at] = score.pixels[Math.round(127.5 * (1 + x / limit))];
    }));
    const name = (at) => visible(vocab[ids[at]]);
    canvas.style.width = `min(100%, ${1.7 * (n + 1)}rem)`;
    drawCells(canvas, source, { across: name, down: name, look: i ? [null, k] : [k, q] });
    legend.replaceChildren(scoreBar(limit));
  });
  const effects = logits.subarray(k * V, (k + 1) * V), order = ranked(effects, V);
  const list = (tokens) => tokens.map((id) => `${quoted(vocab[id])} ${signed(effects[id], 2)}`);
  const pair = pairAlone.map((id) => quoted(vocab[id]));
  readAlone.textContent = `${headName(h)}, query ${pair[0]}, key ${pair[1]}: score ` +
    `${number(shown[0][q * n + k])}. Attending to ${pair[1]} raises ` +
    `${list(order.slice(0, 3)).join(", ")} and lowers ` +
    `${list(order.slice(-3).reverse()).join(", ")}.` +
    (sliders.length ? ` Below: the score over ${embedsPositions ? "positions" : "distance"}.` : "");
  drawCurve(h, queries[0]);
}

/** The score of the chosen pair at each distance, or at each position of the key. */
function drawCurve(h, query) {
  if (!sliders.length) return;
  const layer = new Layer0(engineFor("plain", state.view.snapshot), pairAlone);
  const count = embedsPositions ? query + 1 : B;
  const y = range(count).map((at) =>
    layer.scores(h, ...(embedsPositions ? [[query], [at]] : [[at], [0]]))[1]);
  const label = `score of ${pairAlone.map((id) => quoted(vocab[id])).join(" with ")}`;
  lineChart(curve, [{ y, kind: "chosen", title: label }],
    { label, places: range(count), unit: embedsPositions ? "position" : "distance", values: true,
      level: 0 });
}

if (!whyNot) {
  $("alone-section").oninput = showAlone;
  tables.forEach(({ canvas }, i) => {
    const choose = ([column, row]) => {
      const ids = idsAlone(), last = ids.length - 1;
      if (column > last || row > last) return;
      pairAlone = i ? [pairAlone[0], ids[row]] : [ids[row], ids[column]];
      showAlone();
    };
    canvas.onclick = (event) => choose(cellUnder(canvas, event) ?? [Infinity, 0]);
    canvas.onkeydown = withArrows((_, across, down) => {
      const ids = idsAlone(), [q, k] = pairAlone.map((id) => ids.indexOf(id));
      choose((i ? [k, k + down] : [k + across, q + down])
        .map((at) => clamp(at, 0, ids.length - 1)));
    });
  });
  new ResizeObserver(showAlone).observe($("alone-section"));
}

/** Show the head that was selected, if it is in layer 0. */
export function followInLayer0() {
  if (state.head !== followed && state.head < H) headChoice.value = state.head;
  followed = state.head;
}
