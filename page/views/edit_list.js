// The edits, and their effect on the loss of the text.

import { toggleEdit, undo } from "../actions.js";
import { editing } from "../run.js";
import { state } from "../state.js";
import { $, button, refill } from "./elements.js";
import { number, signed } from "./format.js";

// A patch needs a second text of the same length; the position must be in the window.
const fits = ({ start, other, pass: { T } }) =>
  !start && other.length === T;

export const hasEffect = ({ kind, position }, view) => position === undefined ||
  (!view.start && position < view.pass.T && (kind !== "patch" || fits(view)));

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
