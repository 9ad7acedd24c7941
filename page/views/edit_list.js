// The edits, and their effect on the loss of the text.

import { toggleEdit, undo } from "../actions.js";
import { indexOfLargest, range } from "../engine/numbers.js";
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

/** Where the edits change the probability of the prediction most: {t, best: the prediction without
 * edits, was, now}. It is the last token, unless that changes by less than half as much. */
function mostChanged() {
  const { pass, before: { T, logP } } = state.view, changes = range(T).map((t) => {
    const best = indexOfLargest(rowOf(logP, t));
    const [was, now] = [logP, pass.logP].map((rows) => Math.exp(rowOf(rows, t)[best]));
    return { t, best, was, now, by: Math.abs(now - was) };
  });
  const most = changes.reduce((a, b) => (b.by > a.by ? b : a)), last = changes.at(-1);
  return last.by < most.by / 2 ? most : last;
}

export function showEdits() {
  const { edits, view } = state;
  $("edits").hidden = !edits.length;
  refill($("edit-list"), ...edits.map((word) => {
    const says = inPlainWords(editing.read(word));
    return p(says, button(() => toggleEdit(word), { ariaLabel: `undo: ${says}` }, "Undo"));
  }));
  const { pass, before } = view, { t, best, was, now } = mostChanged();
  const isLast = t === pass.T - 1;
  $("undo").hidden = edits.length < 2;
  $("undo").textContent = `Undo all ${edits.length}`;
  $("change").textContent = `${quoted(vocab[best])} ${isLast ? "comes next" : `after ${place("token", t)}`}: ` +
    `${number(was)} → ${number(now)}; loss of this text: ${number(before.loss)} → ` +
    `${number(pass.loss)} (${signed(pass.loss - before.loss, 3)})`;
}

$("undo").onclick = undo;
