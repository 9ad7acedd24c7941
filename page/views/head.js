// The selected head: its map, and the cell of the map that is selected.

import {
  hideKey, moveKey, pin, pointAt, setInstead, setStage, toggleHead,
} from "../actions.js";
import { clamp, largestOf } from "../engine/numbers.js";
import { data } from "../data.js";
import { labelOf } from "../measures.js";
import { atStep, config, editing, headName, own, sizes } from "../run.js";
import {
  editableKey, edited, isHeadOff, isOff, looking, maskNow, offWord, place, weightsOf, windowOf,
} from "../selection.js";
import { state } from "../state.js";
import { cellUnder, drawCells } from "./cells.js";
import { theme } from "./colors.js";
import { $, el, rem, withArrows } from "./elements.js";
import { number, signed, visible } from "./format.js";
import { paintMap, scoresOf } from "./maps.js";

const map = el("canvas"); // the map at one pixel a pair
const part = el("canvas"); // what of it is on show: in big letters, as much as fits
let corner = [0, 0]; // the first key and query on show

export function showHead() {
  const { head, stage, view } = state, name = headName(head);
  const label = edited() ? "" : labelOf(head, view.snapshot), off = offWord(head) !== undefined;
  $("map").classList.toggle("off", isHeadOff(head));
  $("head-title").textContent = `${name}${label && ` ${label}`}`;
  if (data.jobs) {
    const { matters, reads, sentence } = data.jobs[head];
    $("head-job").textContent = [`Matters for: ${matters}`, reads.length && `attends to: ${reads.join(", and ")}`,
      view.snapshot !== own() && `measured${atStep}`].filter(Boolean).join(" · ");
    $("head-evidence").textContent = `${sentence} Measured${atStep}.`;
  }
  $("ablate").textContent = `${off ? "Restore" : "Ablate"} ${name}`;
  $("ablate").ariaPressed = off;
  $("instead").value = state.instead;
  $("ablate").disabled = isOff(`L${Math.floor(head / sizes.H)}.attn`);
  for (const button of document.querySelectorAll("[data-stage]")) {
    button.ariaPressed = button.dataset.stage === stage;
  }
  $("map").ariaLabel = `Attention map of ${name}; arrow keys move in it`;
  paintMap(map, head, stage);
}

export function drawMap() {
  const { view } = state;
  if (!view || !$("map").clientWidth) return; // before the first view, or while an MLP is open
  const look = looking(), { T } = view.pass, q = look?.q ?? T - 1, at = [look?.k ?? q, q];
  const most = state.big ? Math.floor(($("map").clientWidth / rem() - 1.6) / 0.88) : T;
  part.width = part.height = Math.min(T, most);
  corner = corner.map((from, i) =>
    clamp(from, Math.max(0, at[i] - part.width + 1), Math.min(at[i], T - part.width)));
  part.getContext("2d").drawImage(map, -corner[0], -corner[1]);
  const [across, down] = corner.map((from) => (i) => visible(view.tokens[from + i]));
  const inPart = [look?.k, look?.q].map((t, i) => (Number.isInteger(t) ? t - corner[i] : null));
  $("readout").textContent = (look ? inWords(look) : "Point at a cell, or at a token of the text.") +
    (part.width < T ? " Only a part of the map fits." : "");
  drawCells($("map"), part, { across, down, look: inPart });
  const { top, side } = $("map").dataset, context = $("map").getContext("2d");
  if (view.same > 0 && !look && document.activeElement === $("typed")) { // mark the unchanged rows
    context.fillStyle = theme().kept;
    context.fillRect(0, Number(top), 4, view.same * side);
  }
}

function inWords({ q, k }) {
  const weights = weightsOf(state.head, q);
  if (k === null) {
    const most = weights.indexOf(largestOf(weights));
    return `${place("q", q)} attends most to ${place("k", most)}: weight ${number(weights[most])}`;
  }
  const parts = [k > q ? "masked (a later key)"
    : q - k >= windowOf(state.head) ? `masked (the window is ${windowOf(state.head)})`
    : maskNow()(q, k) ? "hidden" : `weight ${number(weights[k])}`];
  if (k <= q || state.stage === "scores") {
    parts.push(`attention score ${number(scoresOf(state.head)[q * state.view.pass.T + k])}`);
  }
  return `${place("q", q)} → ${place("k", k)}: ${parts.join(", ")}`;
}

/** A key in the selected head, in all others, or in all, as in a word of the edits. */
const keyPlace = (name = headName(state.head)) =>
  `@${editableKey()}${[`/${name}`, `/!${name}`, ""][$("key-heads").selectedIndex]}`;

export function showKeyEdits() {
  const key = editableKey(), isNone = key === null, hidden = isOff(`hide${keyPlace()}`);
  const moved = state.edits.find((word) => word.startsWith(`move${keyPlace()}=`));
  $("key-name").textContent = !isNone ? `move ${place("key", key)}`
    : state.view.start ? "Text too long" : "Select a token";
  $("key-heads").options[0].text = `in ${headName(state.head)}`;
  Object.assign($("key-by"), { value: moved?.split("=")[1] ?? 0, disabled: isNone || !editing.canMove });
  $("key-moved").textContent = moved ? signed(Number($("key-by").value), 0) : "0";
  Object.assign($("hide-key"), { disabled: isNone, ariaPressed: hidden,
    textContent: hidden ? "Show" : "Hide" });
}

for (const button of document.querySelectorAll("[data-stage]")) {
  button.onclick = () => setStage(button.dataset.stage);
}
$("instead").onchange = () => setInstead($("instead").value);
$("ablate").onclick = () => toggleHead(state.head);
$("key-heads").onchange = showKeyEdits;
$("key-by").max = Math.min(32, sizes.B - 1);
$("key-by").min = -$("key-by").max;
$("key-by").oninput = () => moveKey(keyPlace(), Number($("key-by").value));
$("hide-key").onclick = () => hideKey(keyPlace());
if (!editing.canMove) {
  $("key-name").dataset.says = `Keys cannot be moved: positions are ${config.positions}, and only ` +
    "rotary ones are in the keys.";
}
// A press on a button moves the focus; if this replaced the button, the click would be lost.
for (const moved of ["focus", "blur"]) $("typed").addEventListener(moved, drawMap);

function pairAt(event) {
  const [k, q] = cellUnder($("map"), event)?.map((at, i) => corner[i] + at) ?? [Infinity, 0];
  return Math.max(q, k) < state.view.pass.T ? { q, k } : null;
}

Object.assign($("map"), {
  onpointermove: (event) => pointAt(pairAt(event)),
  onpointerleave: () => pointAt(null),
  onclick: (event) => pin(pairAt(event)),
  onkeydown: withArrows((_, across, down) => {
    const last = state.view.pass.T - 1;
    const { q, k } = looking() ?? { q: last, k: null }, to = clamp(q + down, 0, last);
    const most = state.stage === "scores" ? last : to; // later keys are masked
    pin({ q: to, k: across || k ? clamp((k ?? q) + across, 0, most) : k });
  }),
});
