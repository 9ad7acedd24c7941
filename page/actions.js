// What a reader can do, as changes of the state.

import { clamp } from "./engine/numbers.js";
import { editing, headName, HEADS, last, sizes } from "./run.js";
import { isOff, offWord } from "./selection.js";
import { change, initial, state } from "./state.js";
import { fillField } from "./views/typing.js";

export const vote = (id) => change({ bar: state.bar === id ? null : id, token: id });
export const setStage = (stage) => change({ stage });
export const undo = () => change({ edits: [] });
export const openPanel = (key) => change({ panel: key, opened: key });
export const goTo = (index) => change({ snapshot: clamp(index, 0, last()) });

export function selectHead(head) {
  if (state.view) change({ head, mlp: null });
}

export const openMlp = (mlp) => change({ mlp });

export function moveHead([across, down]) {
  const { H } = sizes, to = state.head + across + down * H;
  const leavesLayer = !down && Math.floor(to / H) !== Math.floor(state.head / H);
  if (to >= 0 && to < HEADS && !leavesLayer) selectHead(to);
}

export function toggleEdit(word, changes = {}) {
  change({ ...changes, edits: isOff(word)
    ? state.edits.filter((other) => other !== word) : [...state.edits, word] });
}

export const toggleHead = (head) =>
  toggleEdit(offWord(head) ?? `${headName(head)}=${state.instead}`);

export function setInstead(instead) {
  change({ instead, edits: state.edits.map((word) => word.replace(/=[zm].*/, `=${instead}`)) });
}

/** Rotate a key by some positions: `where` is "move@12/L1H0". */
export function moveKey(where, by) {
  const others = state.edits.filter((word) => !word.startsWith(`${where}=`));
  change({ edits: by ? [...others, `${where}=${by}`] : others });
}

/** Restore the initial state of the page, except for some changes. */
export function restart(changes = {}) {
  const instead = changes.edits?.map((word) => editing.read(word).instead).find(Boolean) ?? "zero";
  const all = { ...initial(), hover: null, bar: null, instead, ...changes };
  fillField(all.text);
  change(all);
}

/** Restore the initial state, but keep the text. */
export const reset = () => restart({ text: state.text, panel: state.panel });

export function pointAt(hover) {
  if (hover?.q !== state.hover?.q || hover?.k !== state.hover?.k) change({ hover });
}

export const pin = (where) => change({ pin: where, hover: null });
