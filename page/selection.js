// What the state selects: a query, a key, a row of attention weights, the heads that are ablated.

import { indexOfLargest, triangle } from "./engine/numbers.js";
import { headName, sizes, vocab } from "./run.js";
import { initial, state } from "./state.js";
import { quoted } from "./views/format.js";

/** The tokens of a text that the model reads: it skips those that it never saw. */
export const readable = (text) => text.filter(({ id }) => id !== null);

/** The text, or the last one of which the model could read something. */
export const textOnShow = () => (readable(state.text).length ? state.text
  : state.view?.seen ?? initial().text);

/** A token's place in words: "token 3 'x'". */
export const place = (letter, t) => `${letter} ${t} ${quoted(state.view.tokens[t])}`;

export const HAS_LINES = vocab.some((token) => token.includes("\n"));

/** The column at which a token begins, counted from 1. */
export function columnOf(t) {
  const before = state.view.seen.slice(0, state.view.start + t).map(({ token }) => token).join("");
  return Array.from(before.split("\n").at(-1)).length + 1;
}

/** A column in words: ", column 70"; "" if the model knows no newline. */
export const atColumn = (t) => (HAS_LINES ? `, column ${columnOf(t)}` : "");

/** The selected {q, k}. In the first step the text shows surprisal, in the others attention from
 * its last token. */
export const looking = () =>
  state.hover ?? state.pin ?? (state.guide ? { q: state.view.pass.T - 1, k: null } : null);

export const queryOnShow = () => Math.min(looking()?.q ?? Infinity, state.view.pass.T - 1);

export const weightsOf = (head, q) =>
  state.view.pass.attention[head].subarray(triangle(q), triangle(q + 1));

/** The selected query and key; if no key is selected, the one with the largest weight. */
export function pairOnShow() {
  const q = queryOnShow(), weights = weightsOf(state.head, q), k = looking()?.k ?? Infinity;
  return { q, k: k <= q ? k : indexOfLargest(weights), weights };
}

export const windowOf = (head) => sizes.windows[Math.floor(head / sizes.H)];

/** Return a function that tests whether k is masked for query q of a head. */
export function maskNow(head = state.head) {
  const hidden = new Set(state.view.edits // those that fit the text
    .filter((edit) => edit.layer * sizes.H + edit.head === head).map(({ hide }) => hide));
  const window = windowOf(head);
  return (q, k) => k > q || q - k >= window || (k < q && hidden.has(k));
}

/** Whether the position of an edit is in the text. A patch needs a second text of the same length. */
export const hasEffect = ({ kind, position }, { start, other, pass: { T } }) =>
  position === undefined || (!start && position < T && (kind !== "patch" || other.length === T));

/** The key to move or hide: that of the selected cell, or of the selected token; or null. */
export const editableKey = () =>
  (state.view.start || !state.pin ? null : state.pin.k ?? state.pin.q);

export const edited = () => state.view.before !== state.view.pass;
export const isOff = (word) => state.edits.includes(word);

/** The edit that ablates this head alone, if there is one. */
export const offWord = (head) =>
  ["zero", "mean"].map((how) => `${headName(head)}=${how}`).find(isOff);

export const isHeadOff = (head) =>
  offWord(head) !== undefined || isOff(`L${Math.floor(head / sizes.H)}.attn`);
