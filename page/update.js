// Computing again after a change of the state.

import { keepAddress } from "./address.js";
import { check } from "./check.js";
import { windowStart } from "./engine/engine.js";
import { sameAtStart } from "./engine/numbers.js";
import { compute, passOf } from "./engine/pass.js";
import { madeOther } from "./opening.js";
import { editing, engineFor, last, sizes, snapshots, tokenizer } from "./run.js";
import { readable, textOnShow } from "./selection.js";
import { change, settled, state } from "./state.js";
import { goOn, showAhead } from "./views/continuation.js";
import { hasEffect } from "./views/edit_list.js";
import { $ } from "./views/elements.js";
import { showEquality } from "./views/header.js";
import { showPanel } from "./views/panels.js";
import { ablating, measureHeads, showStepButtons } from "./views/steps.js";
import { loaded } from "./views/trouble.js";

const ofOther = (word) => word.startsWith("patch"); // needs the other text

/** Compute the view that the state requires, and show it; stop if the state changes meanwhile. */
export async function update() {
  const turn = state.turn + 1;
  const isCurrent = () => turn === state.turn;
  change({ turn });
  document.body.dataset.busy = "yes";
  $("slider").value = state.snapshot;
  $("instead").value = state.instead;
  showStepButtons();
  if (state.snapshot !== last() && !(await loaded.then(isCurrent))) return;
  const view = await computeView(turn, readable(textOnShow()), isCurrent);
  if (!view) return;
  const inText = (at) => (at && Math.max(at.q, at.k ?? 0) < view.pass.T ? at : null);
  showAhead([]);
  change({ view, pin: inText(state.pin), hover: inText(state.hover) });
  document.body.dataset.snapshot = view.snapshot;
  keepAddress();
  await showPanel(isCurrent);
  if (!isCurrent()) return;
  if (state.opened) $(`${state.opened}-section`).scrollIntoView({ block: "nearest" });
  change({ opened: null });
  if (ablating() && !(await measureHeads(isCurrent))) return;
  const verdict = await check(view.snapshot);
  if (!isCurrent()) return;
  showEquality(verdict);
  await goOn();
}

/** Return the model's pass over the end of the text, with and without the edits; nothing if it is
 * no longer wanted. */
async function computeView(turn, seen, isCurrent) {
  const { snapshot, edits, view: was } = state;
  const start = windowStart(seen.length - 1, sizes.B);
  const tokens = seen.slice(start).map(({ token }) => token);
  const ids = seen.slice(start).map(({ id }) => id);
  const plain = engineFor("plain", snapshot);
  if (!(await compute(plain, ids, [], isCurrent))) return;
  const before = passOf(plain);
  const given = readable(state.other ?? []);
  const other = given.length ? given : start ? seen : madeOther(before, seen);
  const view = { turn, snapshot, seen, start, tokens, other, before, pass: before, engine: plain };
  const inputs = [snapshots[snapshot].step, start, ...edits, edits.some(ofOther) && tokenizer.decode(other)];
  view.made = inputs.join();
  const words = edits.filter((word) => hasEffect(editing.read(word), view));
  view.edits = [];
  if (edits.length) {
    const patched = words.some(ofOther);
    const donor = patched ? engineFor("donor", snapshot) : null;
    if (patched && !(await compute(donor, other.map(({ id }) => id), [], isCurrent))) return;
    view.engine = engineFor("edited", snapshot);
    view.edits = editing.toEngine(words, donor);
    if (!(await compute(view.engine, ids, view.edits, isCurrent))) return;
    view.pass = passOf(view.engine);
  }
  view.same = was?.made === view.made ? sameAtStart(was.pass.ids, ids) : 0;
  if (view.same === ids.length) view.same = 0; // nothing was typed
  return view;
}

/** Show the open panel again, unless an update is in progress. */
export function refreshPanel() {
  const { turn } = state;
  if (settled()) showPanel(() => turn === state.turn);
}

/** Show what depends on the selected head, and is computed only while it is open. */
export function followHead() {
  if (ablating()) update();
  else {
    refreshPanel();
    keepAddress();
  }
}
