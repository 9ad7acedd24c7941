// The edits, and their effect on the loss of the text.

import { toggleEdit, undo } from "../actions.js";
import { editing } from "../run.js";
import { state } from "../state.js";
import { $, button, refill } from "./elements.js";
import { number, signed } from "./format.js";

/** Whether the position is in the text. A patch needs a second text of the same length. */
export const hasEffect = ({ kind, position }, { start, other, pass: { T } }) =>
  position === undefined || (!start && position < T && (kind !== "patch" || other.length === T));

function inPlainWords({ kind, layer, head, position, instead, others, by }) {
  const where = head === undefined ? `L${layer}` : `L${layer}H${head}`;
  const heads = layer === undefined ? "all heads" : others ? `all heads but ${where}` : where;
  return {
    head: `${where} ${instead === "mean" ? "set to mean" : "ablated"}`,
    attn: `${where} heads ablated`,
    mlp: `${where} MLP ablated`,
    hide: `key ${position} hidden from ${heads}`,
    move: `key ${position} moved by ${signed(by, 0)} in ${heads}`,
    patch: `${where} patched at ${position}`,
  }[kind];
}

export function showEdits() {
  const { edits, view } = state;
  $("edits").hidden = !edits.length;
  refill($("edit-list"), ...edits.map((word) => {
    const edit = editing.read(word);
    const says = inPlainWords(edit) + (hasEffect(edit, view) ? "" : ": not in this text");
    return button(() => toggleEdit(word),
      { className: "chip", title: "undo", ariaLabel: `undo: ${says}` }, `${says} ×`);
  }));
  const [now, before] = [view.pass.loss, view.before.loss];
  $("change").textContent =
    `this text: ${number(before)} → ${number(now)} (${signed(now - before, 3)})`;
}

$("undo").onclick = undo;
