// A chosen token: its probability at every position of the text, and the weight of the selected head
// on its last occurrence.

import { range } from "../engine/numbers.js";
import { weightByDistance } from "../engine/pass.js";
import { headName, sizes, tokenizer, vocab } from "../run.js";
import { columnOf, edited, queryOnShow } from "../selection.js";
import { change, state } from "../state.js";
import { lineChart } from "./chart.js";
import { $ } from "./elements.js";
import { quoted, visible } from "./format.js";

/** The probability of the chosen token after each token. */
export const chancesOf = ({ T, logP }) =>
  range(T).map((t) => Math.exp(logP[t * sizes.V + state.token]));

const LIKELY = 0.3;

/** The first column of the last line after which a newline is likely, in words. */
function lineEnd(pass) {
  const from = state.view.tokens.findLastIndex((token) => token.includes("\n")) + 1;
  const t = chancesOf(pass).findIndex((chance, t) => t >= from && chance >= LIKELY);
  return t < 0 ? "nowhere" : `after column ${columnOf(t)}`;
}

export function showChosen() {
  const { color, token, head, view } = state, isShown = color === "probability";
  $("color").value = color;
  for (const id of ["chosen", "chances", "distances", "line-end"]) $(id).hidden = !isShown;
  (isShown ? $("chances") : $("readout").parentElement).after($("key-edit")); // near what it changes
  if (!isShown || !view) return;
  if (document.activeElement !== $("chosen")) $("chosen").value = visible(vocab[token]);
  const { pass, before } = view, isLine = vocab[token] === "\n";
  $("line-end").textContent = !isLine ? "" : `The last line: a newline is likely (${LIKELY} or more) ` +
    lineEnd(before) + (edited() ? ` without the edits, and ${lineEnd(pass)} with them.` : ".");
  const y = chancesOf(pass), name = quoted(vocab[token]);
  const label = `probability of ${name} after each token`;
  const was = edited() ? [{ y: chancesOf(before), kind: "", title: "without edits" }] : [];
  lineChart($("chances"), [...was, { y, kind: "chosen", title: label }],
    { label, places: range(pass.T), unit: "token", values: true, here: queryOnShow() });
  const [caption, chart] = $("distances").children;
  const weights = weightByDistance(pass.attention[head], pass.ids, token);
  const reach = weights.findLastIndex(Number.isFinite) + 1;
  const says = `Weight of ${headName(head)} on the last ${name}, by distance`;
  caption.textContent = reach ? `${says}.` : `${name} is not in this text.`;
  chart.replaceChildren();
  lineChart(chart, [{ y: weights.slice(0, reach), kind: "chosen", title: says }],
    { label: says, places: range(reach), unit: "distance", values: true });
}

$("color").onchange = () => change({ color: $("color").value });
$("chosen").oninput = () => { // a token, or signs for spaces
  const typed = $("chosen").value, plain = typed.replaceAll("␣", " ")
    .replace(/↵|\\n/g, "\n").replace(/⇥|\\t/g, "\t");
  const token = tokenizer.idOf.get(typed) ?? tokenizer.idOf.get(plain);
  $("chosen").ariaInvalid = token === undefined;
  if (token !== undefined) change({ token });
};
$("chosen").onblur = showChosen;
