// The edits, and their effect on the loss of the text.

import { toggleEdit, undo } from "../actions.js";
import { indexOfLargest } from "../engine/numbers.js";
import { editing, rowOf, vocab } from "../run.js";
import { hasEffect, place } from "../selection.js";
import { state } from "../state.js";
import { $, button, p, refill } from "./elements.js";
import { number, quoted, signed } from "./format.js";

/** Return a sentence about an edit, which its Undo follows. */
function inPlainWords(edit) {
  const { kind, layer, head, position, instead, others, by } = edit;
  const at = hasEffect(edit, state.view) && position in state.view.tokens
    ? place("token", position) : `token ${position} (not in this text)`;
  const where = head === undefined ? `layer ${layer}` : `L${layer}H${head}`;
  const heads = layer === undefined ? "all heads" : others ? `all heads but ${where}` : where;
  return {
    head: `${where} is ablated with ${instead === "mean" ? "its mean" : "zeros"}. `,
    attn: `The heads of ${where} are ablated. `,
    mlp: `The MLP of ${where} is ablated. `,
    hide: `The key of ${at} is hidden from ${heads}. `,
    move: `The key of ${at} is moved by ${by} in ${heads}. `,
    patch: `The ${head === undefined ? "in" : "out"}put of ${where} at ${at} is from the second text. `,
  }[kind];
}

export function showEdits() {
  const { edits, view } = state;
  $("edits").hidden = !edits.length;
  refill($("edit-list"), ...edits.map((word) => {
    const says = inPlainWords(editing.read(word));
    return p(says, button(() => toggleEdit(word), { ariaLabel: `undo: ${says}` }, "Undo"));
  }));
  const { pass, before: { T, logP, loss } } = view, last = rowOf(logP, T - 1), best = indexOfLargest(last);
  const [was, now] = [last, rowOf(pass.logP, T - 1)].map((row) => number(Math.exp(row[best])));
  $("undo").hidden = edits.length < 2;
  $("undo").textContent = `Undo all ${edits.length}`;
  $("change").textContent =
    `this text: ${number(loss)} → ${number(pass.loss)} (${signed(pass.loss - loss, 3)}); then ` +
    `${quoted(vocab[best])}: ${was} → ${now}`;
}

$("undo").onclick = undo;
