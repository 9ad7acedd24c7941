// Five steps through attention, with the numbers of this run and this text.

import { toggleHead } from "../actions.js";
import { indexOfLargest, largestOf, range, ranked, sum } from "../engine/numbers.js";
import { copied, inductionOn } from "../engine/pass.js";
import { HIGH, highOf } from "../engine/stages.js";
import { config, headName, HEADS, last, layerAndHead, rowOf, sizes, vocab } from "../run.js";
import {
  edited, isHeadOff, looking, maskNow, offWord, pairOnShow, place, weightsOf,
} from "../selection.js";
import { change, settled, state } from "../state.js";
import { areOfText } from "../update.js";
import { colorOf } from "./colors.js";
import { $, button, cell, el, header, numeral, p, refill, row, svg, term } from "./elements.js";
import { count, number, quoted, signed, tokensOf } from "./format.js";
import { UNIFORM_GUESS } from "./legends.js";
import { scoresOf } from "./maps.js";

const { H, C, D, V } = sizes;

function showTyping() {
  const { T, logP, loss } = state.view.pass, row = rowOf(logP, T - 1), best = indexOfLargest(row);
  if (state.note) return [p(state.note)];
  return [p("Type at the end of the text, or change a token in the middle: in the model, no " +
    "token affects earlier ones."),
  p(`After ${place("token", T - 1)} the model${edited() ? ", with the edits," : ""} gives ` +
    `${quoted(vocab[best])} a probability of ${number(Math.exp(row[best]))}; its mean loss on ` +
    `this text is ${number(loss)} nats. A uniform guess among ${count(V)} tokens has ` +
    `${number(UNIFORM_GUESS)}.`)];
}

/** What the key at k can tell of the token before it: an earlier head that attends to that, more than
 * a uniform head does. */
function ofPrevious(k) {
  const weights = range(layerAndHead(state.head)[0] * H).map((each) =>
    (isReplaced(...layerAndHead(each), k) ? 0 : weightsOf(each, k)[k - 1] ?? 0));
  const head = indexOfLargest(weights);
  return !(weights[head] >= highOf(1 / (k + 1))) ? "" : ` ${headName(head)} attends from ${place("token", k)} to ` +
    `the one before, ${quoted(state.view.tokens[k - 1])}: so key ${k} can tell what came before it.`;
}

function showAttending() {
  const { q, k, weights } = pairOnShow(), isMasked = maskNow();
  const open = range(q + 1).filter((each) => !isMasked(q, each)).length;
  return [p("Point at a token under the text field. The arcs show where the selected " +
    "head attends from it. In the map, its row is the ", term("query"), ", the columns are ",
  term("key", "keys"), "."),
  p(`${headName(state.head)} attends from ${place("query", q)} to ${place("key", k)} with weight ` +
    `${number(weights[k])}. The weights of the ${tokensOf(open)} it can attend to sum to 1.` +
    ofPrevious(k))];
}

/** The query, key or value of the selected head at t, before the rotation. */
function projected(kind, t) {
  const { engine } = state.view, { memory, at } = engine, [l, h] = layerAndHead(state.head);
  const x = at[`x${l}`] + t * C, isNormed = kind !== "value" && config.qk_norm;
  const all = engine.projected(l, kind, [memory.slice(x, x + C)], isNormed);
  return all.subarray(h * D, (h + 1) * D);
}

/** Vectors of the head below each other, as rows of bars, one bar per channel, each row to its own
 * scale. A row is [its name, its numbers, a sum or nothing]; `says` is a function of a channel, for
 * the numbers under the pointer. */
function channels(rows, says) {
  const height = 2 * rows.length;
  const limits = rows.map(([, numbers]) => largestOf(numbers.map(Math.abs)) || 1);
  const bar = (value, x, row) => {
    const tall = (0.9 * Math.abs(value)) / limits[row];
    return svg("rect", { x: x + 0.1, width: 0.8, y: 2 * row + 1 - (value > 0 ? tall : 0),
      height: tall, fill: colorOf(value) });
  };
  const columns = range(D).map((i) => svg("g", { "data-says": `channel ${i}: ${says(i)}` },
    svg("rect", { x: i, width: 1, height }), ...rows.map(([, numbers], row) =>
      bar(numbers[i], i, row))));
  const drawing = svg("svg", { viewBox: `0 0 ${D} ${height}`, preserveAspectRatio: "none" },
    ...columns);
  drawing.style.gridRow = `1 / span ${rows.length}`;
  drawing.style.height = `${1.25 * rows.length}rem`;
  return el("div", { className: "channels" }, drawing, ...rows.flatMap(([name, , sum], row) =>
    [el("b", {}, name), el("span", {}, sum ?? `± ${number(limits[row], 2)}`)]));
}

const isBefore = el("input", { type: "checkbox", onchange: () => showStep() });

/** How a query meets a key: their products, the score, the mask and the softmax over the row. */
function showMeeting() {
  if (isBefore.checked && !settled()) return [];
  const { q, k: attended, weights } = pairOnShow(), { T, queries, keys } = state.view.pass;
  const k = looking()?.k ?? attended; // perhaps a later one
  const isMasked = maskNow(), name = headName(state.head);
  const [l, h] = layerAndHead(state.head);
  const rotated = (rows, t) => rows[l].subarray(t * C + h * D, t * C + (h + 1) * D);
  const [Q, K] = isBefore.checked ? [projected("query", q), projected("key", k)]
    : [rotated(queries, q), rotated(keys, k)];
  const products = Q.map((x, i) => x * K[i]);
  const scores = scoresOf(state.head).slice(q * T, (q + 1) * T);
  const open = scores.map((score, k) => (isMasked(q, k) ? -Infinity : score));
  const largest = largestOf(open), exps = open.map((score) => Math.exp(score - largest));
  return [
    p("The ", term("query"), ` encodes what ${name} looks for, the `, term("key"), " what it " +
      "finds at a token: training found how. Where their signs agree, the score rises."),
    channels([[place("query", q), Q], [place("key", k), K],
      ["query × key", products, `sum ${number(sum(products), 2)}`]],
    (i) => `${number(Q[i])} × ${number(K[i])} = ${number(products[i])}`),
    ...(config.positions === "rotary" ? [el("label", { className: "quiet small" }, isBefore,
      " before the rotation by position" + (isBefore.checked
        ? `, which makes the sum ${number(scores[k] * Math.sqrt(D), 2)}` : ""))] : []),
    el("table", { id: "worked" },
      row(...[isBefore.checked ? "score" : `sum/√${D} = score`, "mask",
        `exp(score ${largest < 0 ? "+" : "−"} ${number(Math.abs(largest))})`,
        `sum, ${count(open.filter(Number.isFinite).length)} keys`, "weight"].map((title) => header(title))),
      row(...[number(scores[k]), isMasked(q, k) ? "−∞" : "0", number(exps[k]), number(sum(exps)),
        number(weights[k] ?? 0)].map(numeral))),
  ];
}

/** Whether an edit replaces what a head of a layer adds at q. */
const isReplaced = (l, h, q) => state.view.edits.some(({ layer, head, position = q, row, off }) =>
  position === q && (head === undefined ? row && layer > l
    : (row || off) && head === h && layer === l));

/** What a head adds from k to q, through its value. */
function showWriting() {
  if (!settled()) return [];
  const name = headName(state.head), { q, k, weights } = pairOnShow();
  const { view } = state, id = view.pass.ids[k];
  if (isReplaced(...layerAndHead(state.head), q)) {
    return [p(`An edit replaces what ${name} adds at ${place("query", q)}.`)];
  }
  const { added, logits } = copied(view.engine, state.head, q, k, weights[k]);
  if (weights[k] && !logits.some(Boolean)) {
    return [p(`The output weights of ${name} are zero: it adds nothing yet.`)];
  }
  const value = projected("value", k), rank = ranked(logits, V).indexOf(id) + 1;
  const raised = ranked(logits, 4).map((each) =>
    el("span", { className: "raised" }, el("b", {}, quoted(vocab[each])),
      ` ${signed(logits[each], 2)}`));
  return [
    p("Query and key set the weight. The ", term("value"), " is passed on."),
    channels([[`value ${k} ${quoted(view.tokens[k])}`, value]], (i) => number(value[i])),
    p(`Scaled by its weight, ${number(weights[k])}, and through the output weights, it adds a ` +
      `vector of length ${number(Math.hypot(...added))} at ${place("query", q)}, and directly changes ` +
      `the logit of ${quoted(vocab[id])} by `, el("b", {}, signed(logits[id], 2)),
      rank === 1 ? ", more than any other." : `, rank ${count(rank)} of ${count(V)}.`),
    el("p", { className: "controls" }, "Raised most:", ...raised),
    el("p", { className: "quiet small" }, "Relative to the mean of all logits, with a fixed final " +
      "norm. What MLPs and later layers make of it, step 5 includes."),
  ];
}

function showAblating() {
  const { step, of, before, losses, copying, chances } = state.effects, name = headName(state.head);
  if (!areOfText()) return [p("Measuring each head …")];
  const rise = losses.map((loss) => loss - before.loss), end = rowOf(before.logP, before.T - 1);
  const was = inductionOn(before.attention[of], before.ids);
  const copies = was >= HIGH && of >= H, below = range(Math.floor(of / H) * H);
  const lowest = copies ? below.sort((a, b) => copying[a] - copying[b]).slice(0, 2) : [];
  const shown = [...new Set([state.head, ...lowest, ...ranked(rise, HEADS)])].slice(0, 4)
    .sort((a, b) => rise[b] - rise[a]);
  const title = copies ? [header(`induction of ${headName(of)} on this text ${number(was)}`)] : [];
  return [
    p(`On this text, ablating only ${name} changes the probability of ` +
      `${quoted(vocab[indexOfLargest(end)])} after it from ${number(Math.exp(largestOf(end)))} to `,
    el("b", {}, number(chances[state.head])), last() ? ` (step ${count(step)}).` : "."),
    el("table", {}, row(header("one head"), header(`loss ${number(before.loss)}`), ...title),
      ...shown.map((head) => row(cell(button(() => toggleHead(head), { ariaPressed: isHeadOff(head) },
        `${offWord(head) ? "Restore" : "Ablate"} ${headName(head)}`)),
      numeral(`${number(losses[head])} (${signed(rise[head], 2)})`),
      ...(copies ? [numeral(number(copying[head]))] : [])))),
  ];
}

export const STEPS = [
  ["Type", showTyping], ["Attend", showAttending], ["Softmax", showMeeting], ["Write", showWriting],
  ["Ablate", showAblating],
];
const buttons = STEPS.map(([name], i) => button(() => goToStep(i), {}, `${i + 1} ${name}`));

export function showStep() {
  buttons.forEach((button, i) => { button.ariaPressed = i === state.guide; });
  refill($("step"), ...STEPS[state.guide][1]());
}

export function goToStep(i) {
  change({ guide: i });
  buttons[i].focus({ preventScroll: true });
}

$("steps").append(...buttons);
