// The panel that shows the selected head from the weights alone.

import { Alone, unreadable } from "../engine/alone.js";
import { clamp, indexOfLargest, largestOf, range, ranked } from "../engine/numbers.js";
import { config, engineFor, headName, layerAndHead, sizes, snapshots, vocab } from "../run.js";
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
const allTokens = el("input", { type: "checkbox", id: "alone-all" });
const ofFirst = el("span", { className: "controls" }, ...sliders,
  el("label", {}, averaged, ` average over ${embedsPositions ? "key positions" : "distances"}`));
let writer; // an earlier head, once it is chosen
const writers = el("select", { oninput: () => { writer = Number(writers.value); } });
const ofLater = el("label", {}, "key written by ", writers);
const name = el("b"); // of the head
const tables = ["scores", "logits"].map((what) => {
  const canvas = el("canvas", { id: `alone-${what}`, tabIndex: 0, role: "img" });
  const caption = el("figcaption", { className: "small" }, "What the head adds to each logit " +
    "(column) when it attends to a token (row), per unit of weight, by the direct path, without " +
    "the scale of the final norm");
  return { canvas, caption, legend: el("div"), source: el("canvas") };
});
const curve = el("div", { className: "chart", id: "alone-curve" });
const readAlone = el("output", { id: "alone-readout" });

addPanel("alone-section", whyNot
  ? `Heads cannot be read from the weights alone: ${whyNot}.`
  : "What layer 0 reads at a position depends only on the token there, so the attention scores " +
    "and logit contributions of its heads are tables over tokens, and no text is needed. A later " +
    "head has such a table for each earlier head that may have written the key. In an induction " +
    "head, the largest scores are on the diagonal, if a previous-token head wrote the key. Click " +
    "a cell to choose a pair.",
...(whyNot ? [] : [
  el("div", { className: "controls" }, name, ofFirst, ofLater,
    el("label", {}, allTokens, " all tokens of the vocabulary")),
  el("div", { className: "pair" }, ...tables.map(({ canvas, caption, legend }) =>
    el("figure", {}, caption, canvas, legend))),
  readAlone, curve,
]));

const chosenPlaces = () => sliders.map((label) => Number(label.querySelector("input").value));

/** Positions of query and key, as lists to average over. */
function positionsAlone() {
  const [first = 0, second = 0] = chosenPlaces();
  if (!embedsPositions) return [averaged.checked ? range(B) : [first], [0]];
  return [[first], averaged.checked ? range(first + 1) : [Math.min(first, second)]];
}

/** The chosen one of the first heads; at first, the one that attends most to the previous token. */
function writerOf(count) {
  const { previous_token } = snapshots[state.view.snapshot].scores;
  writers.replaceChildren(...range(count).map((head) => new Option(headName(head), head)));
  writers.value = writer < count ? writer : indexOfLargest(previous_token.slice(0, count));
  return Number(writers.value);
}

const idsAlone = () =>
  (allTokens.checked ? range(V) : [...new Set(state.view.pass.ids)].sort((a, b) => a - b));

export function showAlone() {
  if (whyNot || !state.view || !$("alone-section").offsetParent) return;
  sliders.forEach((label, i) => { label.lastChild.textContent = chosenPlaces()[i]; });
  const { head, view: { snapshot } } = state, ids = idsAlone(), n = ids.length;
  const place = layerAndHead(head), [l, h] = place, through = l > 0 && writerOf(l * H);
  const alone = new Alone(engineFor("plain", snapshot), ids), [queries, keys] = positionsAlone();
  const logits = alone.logits(place, l ? undefined : keys[0]);
  const scores = l ? alone.scoresThrough(layerAndHead(through), place)
    : alone.scores(h, queries, keys);
  const shown = [scores,
    Float32Array.from({ length: n * n }, (_, i) => logits[Math.floor(i / n) * V + ids[i % n]])];
  const says = headName(head), most = indexOfLargest(scores), { score } = theme();
  name.textContent = says;
  const hasPlaces = !l && sliders.length > 0;
  ofFirst.hidden = curve.hidden = !hasPlaces;
  ofLater.hidden = !l;
  const own = range(n).filter((i) => indexOfLargest(scores.subarray(i * n, (i + 1) * n)) === i);
  tables[0].caption.textContent = l
    ? `Attention score of a token's query (row) with the key that ${headName(through)} wrote ` +
      "when it attended to a token (column). Positions, QK-norm and MLPs are left out. The " +
      `largest score is on the diagonal in ${own.length} of ${n} rows.`
    : "Attention score of a query (row) with a key (column), before the softmax";
  let [q, k] = pairAlone.map((id) => ids.indexOf(id));
  if (!(q >= 0 && k >= 0)) [q, k] = [Math.floor(most / n), most % n];
  pairAlone = [ids[q], ids[k]];
  tables.forEach(({ canvas, legend, source }, i) => {
    const limit = largestOf(shown[i].map(Math.abs)) || 1;
    picture(source, n, n, (pixels) => shown[i].forEach((x, at) => {
      pixels[at] = score.pixels[Math.round(127.5 * (1 + x / limit))];
    }));
    const token = (at) => visible(vocab[ids[at]]);
    canvas.style.width = `min(100%, ${1.7 * (n + 1)}rem)`;
    drawCells(canvas, source, { across: token, down: token, look: i ? [null, k] : [k, q] });
    legend.replaceChildren(scoreBar(limit));
  });
  const effects = logits.subarray(k * V, (k + 1) * V), order = ranked(effects, V);
  const list = (tokens) => tokens.map((id) => `${quoted(vocab[id])} ${signed(effects[id], 2)}`);
  const pair = pairAlone.map((id) => quoted(vocab[id]));
  readAlone.textContent = `${says}, query ${pair[0]}, key ${pair[1]}` +
    (l ? ` through ${headName(through)}` : "") + `: score ${number(scores[q * n + k])}. ` +
    `Attending to ${pair[1]} raises ${list(order.slice(0, 3)).join(", ")} and lowers ` +
    `${list(order.slice(-3).reverse()).join(", ")}.` +
    (hasPlaces ? ` Below: the score over ${embedsPositions ? "positions" : "distance"}.` : "");
  if (hasPlaces) drawCurve(h, queries[0]);
}

/** The score of the chosen pair at each distance, or at each position of the key. */
function drawCurve(h, query) {
  const alone = new Alone(engineFor("plain", state.view.snapshot), pairAlone);
  const count = embedsPositions ? query + 1 : B;
  const y = range(count).map((at) =>
    alone.scores(h, ...(embedsPositions ? [[query], [at]] : [[at], [0]]))[1]);
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
