// The panel of patching: what each activation of a second text restores of its prediction.

import { toggleEdit } from "../actions.js";
import { clamp, indexOfLargest, range, sameAtStart } from "../engine/numbers.js";
import { compute } from "../engine/pass.js";
import { editing, engineFor, headName, HEADS, sizes, tokenizer, vocab } from "../run.js";
import { place } from "../selection.js";
import { change, settled, state } from "../state.js";
import { cellUnder, drawCells, picture } from "./cells.js";
import { scale, theme } from "./colors.js";
import { $, rem, showColumn, withArrows } from "./elements.js";
import { count, number, quoted, tokensOf, visible } from "./format.js";

const { L, B, V } = sizes;
const canvas = document.createElement("canvas"); // one pixel per cell
// `key` names texts, step and rows; `shares` has a number per cell; `look` is [column, row].
const grid = { key: null, byHead: false, tokens: [], shares: null, look: null, said: "" };

const keyOf = ({ snapshot, other, pass: { ids } }) =>
  JSON.stringify([snapshot, ids, tokenizer.decode(other), $("by-head").checked]);

const isCurrentGrid = () => grid.key === keyOf(state.view);

/** Dim the patches of another text or step: they stay until there are new ones. */
export function dimPatches() {
  $("patches").classList.toggle("off", !isCurrentGrid());
  if (isCurrentGrid()) return;
  grid.look = null;
  drawPatches();
}

export function showPatching() {
  if (showPatchState() && !isCurrentGrid()) fillPatches();
}

/** Show the second text, and why it cannot be patched from; return whether it can. */
function showPatchState() {
  const { other, start, pass: { T, ids } } = state.view;
  const unseen = state.other?.find(({ id }) => id === null);
  const problem = start ? `Both texts must fit into the context of ${B} tokens.`
    : other.length !== T
      ? `The texts have ${count(T)} and ${tokensOf(other.length)}, but must have the same length.`
      : other.every(({ id }, t) => id === ids[t])
        ? "The two texts are identical." : "";
  $("patch-state").textContent = (problem || (isCurrentGrid() ? grid.said : "")) +
    (unseen ? ` The model never saw ${quoted(unseen.token)} in training, and skips it.` : "");
  if (document.activeElement !== $("other")) {
    $("other").value = tokenizer.decode(state.other ?? other);
  }
  return !problem;
}

const rowsOf = (byHead) => (byHead ? HEADS : L);
const wordOf = (r, position) =>
  `patch@${position}/${grid.byHead ? headName(r) : `L${r}`}`;

/** Patch every cell from the other text, and measure the last prediction. */
async function fillPatches() {
  delete document.body.dataset.filled;
  const { snapshot, other, tokens, pass: { T, ids } } = state.view;
  const byHead = $("by-head").checked;
  const isCurrent = () => grid.shares === shares;
  const otherIds = other.map(({ id }) => id);
  const first = sameAtStart(otherIds, ids); // before it, the activations of both texts are the same
  const shares = range(rowsOf(byHead) * T).map((i) => (i % T < first ? 0 : NaN));
  Object.assign(grid, { key: keyOf(state.view), tokens, shares, byHead, look: null, said: "" });
  $("patches").hidden = false;
  dimPatches();
  const [donor, engine] = ["patch donor", "patch"].map((purpose) => engineFor(purpose, snapshot));
  const lastOf = ({ memory, at: { logits } }) => memory.slice(logits + (T - 1) * V, logits + T * V);
  if (!(await compute(donor, otherIds, [], isCurrent))) return;
  if (!(await compute(engine, ids, [], isCurrent))) return;
  const [logits, donated] = [engine, donor].map(lastOf);
  // The two predictions; if they are the same, the token whose logit rises most.
  const a = indexOfLargest(logits), same = indexOfLargest(donated) === a;
  const gains = donated.map((logit, v) => (v === a ? -Infinity : logit - logits[v]));
  const b = same ? indexOfLargest(gains) : indexOfLargest(donated);
  const difference = (of) => of[b] - of[a];
  const [low, high] = [difference(logits), difference(donated)];
  const says = [vocab[b], vocab[a]].map(quoted);
  grid.said = (same
    ? `The last prediction is ${says[1]} for both texts; the logit of ${says[0]} rises most. `
    : `The last prediction is ${says[1]} for the first text and ${says[0]} for the second. `) +
    `Logit of ${says[0]} minus logit of ${says[1]}: ${number(low, 2)} in the first text, ` +
    `${number(high, 2)} in the second.`;
  showPatchState();
  for (let r = 0; r < rowsOf(byHead); r++) {
    for (let t = T - 1; t >= first; t--) {
      const edits = editing.toEngine([wordOf(r, t)], donor);
      if (!(await compute(engine, ids, edits, isCurrent))) return;
      shares[r * T + t] = (difference(lastOf(engine)) - low) / (high - low);
    }
    drawPatches();
    if (!r) showColumn($("patches"), ($("patches").clientWidth * first) / T);
  }
  document.body.dataset.filled = "yes";
}

export function drawPatches() {
  const { tokens, shares, byHead, look } = grid;
  if (!shares) return;
  const T = tokens.length, { score } = theme();
  picture(canvas, T, rowsOf(byHead), (pixels) => shares.forEach((share, i) => {
    if (Number.isFinite(share)) {
      pixels[i] = score.pixels[Math.round(255 * clamp(0.5 + share / 2, 0, 1))];
    }
  }));
  drawCells($("patches"), canvas, {
    across: (t) => visible(tokens[t]),
    down: (r) => (byHead ? headName(r) : r ? `before layer ${r}` : "embedding"),
    tall: 1.4 * rem(), margin: (byHead ? 3 : 6) * rem(), look,
  });
  $("patch-legend").replaceChildren(scale(score, [[0, "≤ −1"], [0.5, "0"], [1, "≥ 1"]]));
  const [t, r] = look ?? [];
  $("patch-readout").textContent = !look ? "" : `${place("token", t)}, ` +
    `${byHead ? headName(r) : `what enters layer ${r}`}: ${number(shares[r * T + t])} of the ` +
    "difference restored. Click it or press Enter to patch it.";
}

function lookAtPatch(look) {
  if (!grid.shares || !isCurrentGrid()) return;
  const isIn = look && look[0] < state.view.pass.T && look[1] < rowsOf(grid.byHead);
  grid.look = isIn ? look : null;
  drawPatches();
}

function applyPatch() {
  if (!grid.look || !settled()) return;
  const { other } = state.view; // kept, so that it no longer changes with the text
  toggleEdit(wordOf(grid.look[1], grid.look[0]), { other });
}

/** Patch a cell that is already selected, as under a pointer that hovers. */
function clickPatch(event) {
  const [before, at] = [grid.look, cellUnder($("patches"), event)];
  lookAtPatch(at);
  if (grid.look && before?.join() === at.join()) applyPatch();
}

$("other").oninput = () =>
  change({ other: $("other").value ? tokenizer.encode($("other").value) : null });
$("by-head").onchange = showPatching;
Object.assign($("patches"), {
  onpointermove: (event) => lookAtPatch(cellUnder($("patches"), event)),
  onclick: clickPatch,
  onkeyup: (event) => event.key === "Enter" && applyPatch(),
  onkeydown: withArrows((_, across, down) => {
    const last = state.view.pass.T - 1, [t, r] = grid.look ?? [last, 0];
    lookAtPatch([clamp(t + across, 0, last), clamp(r + down, 0, rowsOf(grid.byHead) - 1)]);
  }),
});
