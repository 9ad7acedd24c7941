// The panel of examples: the places of the validation split at which the selected head changes the
// loss most, and at which it attends most. The playground has none.

import { restart } from "../actions.js";
import { range } from "../engine/numbers.js";
import { bytesOf } from "../engine/weights.js";
import { data } from "../data.js";
import { atStep, headName, tokenizer, vocab } from "../run.js";
import { state } from "../state.js";
import { addPanel, button, cell, el, header, numeral, row } from "../views/elements.js";
import { number, signed, visible } from "../views/format.js";

const ARRAYS = { 1: Uint8Array, 2: Uint16Array, 4: Uint32Array };
const { measured, tokens, bytes_per_token: width, length, heads } = data.examples ?? {};
const sequences = tokens && new ARRAYS[width](bytesOf(tokens).buffer);
const KINDS = ["changes the loss most", "attends most to an earlier token"];
const BEFORE = 40; // characters up to the query
const AROUND = 6; // characters before the attended token, and after it, if it is further back

const tables = KINDS.map(() => el("table"));
addPanel("examples-section", `Places of ${measured}, at most one in each sequence${atStep}, ` +
  "without edits. Underlined: the token that the head attends to most; in color: the next token, if " +
  "it is one that the head matters for, on the whole split. Loss change: " +
  "that of the next token without the direct path from the head to the logits. Click a text to " +
  "open it.",
el("div", { className: "pair" }, ...tables.map((table) => el("div", { className: "scroll" }, table))));

export function showExamples() {
  KINDS.forEach((kind, i) => tables[i].replaceChildren(
    row(header(`${headName(state.head)} ${kind}`), ...["next", "weight", "loss change"].map((name) =>
      header(name))),
    ...heads[state.head][i].map(example)));
}

function example([n, q, k, weight, change]) {
  const ids = [...sequences.subarray(n * length, n * length + q + 2)];
  const shown = ids.map((id) => visible(vocab[id]));
  const next = shown.pop();
  const part = (from, to) => shown.slice(from, to).join("");
  const first = range(q).find((t) => part(t, q + 1).length <= BEFORE) ?? q; // of those that fit
  const mark = el("b", {}, shown[k]);
  const content = k < first
    ? [part(0, k).slice(-AROUND), mark, `${part(k + 1, first).slice(0, AROUND)} … `, part(first, q + 1)]
    : [part(first, k), mark, part(k + 1, q + 1)];
  const open = () => restart({ text: ids.slice(0, -1).map((id) => tokenizer.known(id)),
    head: state.head, panel: "examples", pin: { q, k } });
  const matters = data.jobs?.[state.head].tokens.includes(next);
  return row(cell(button(open, { className: "passage" }, ...content)),
    cell(el("code", { className: matters ? "matters" : "" }, next)),
    numeral(number(weight)), numeral(signed(change, 3)));
}
