// What a reader can do, as changes of the state.

import { clamp } from "./engine/numbers.js";
import { editing, headName, last } from "./run.js";
import { isOff, offWord } from "./selection.js";
import { change, initial, state } from "./state.js";
import { fillField } from "./views/typing.js";

export const selectLogit = (id) => change({ bar: state.bar === id ? null : id, token: id });
export const setStage = (stage) => change({ stage });
export const undo = () => change({ edits: [] });
export const openPanel = (key) => change({ panel: key, opened: key });
export const goTo = (index) => change({ snapshot: clamp(index, 0, last()) });

export function selectHead(head) {
  if (state.view) change({ head, mlp: null });
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

/** Replace the edits of a key by a word or none: `where` is "@12/L1H0". */
const setKey = (where, word) => change({ edits: [...state.edits.filter((other) =>
  ![`hide${where}`, `move${where}`].includes(other.split("=")[0])), ...word] });

/** Rotate a key by some positions. */
export const moveKey = (where, by) => setKey(where, by ? [`move${where}=${by}`] : []);
/** Hide a key, or show it. */
export const hideKey = (where) => setKey(where, isOff(`hide${where}`) ? [] : [`hide${where}`]);

/** Restore the initial state of the page, except for some changes. */
export function restart(changes = {}) {
  const instead = changes.edits?.map((word) => editing.read(word).instead).find(Boolean) ?? "zero";
  const all = { ...initial(), hover: null, instead, ...changes };
  change(all);
  fillField(all.text);
}

/** Restore the initial state, but keep the text. */
export const reset = () => restart({ text: state.text, panel: state.panel, more: state.more });

export function pointAt(hover) {
  if (hover?.q !== state.hover?.q || hover?.k !== state.hover?.k) change({ hover });
}

export const pin = (where) => change({ pin: where, hover: null });
