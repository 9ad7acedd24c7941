// What the page shows first: the default text and head, and the second text for patching.

import { indexOfLargest, ranked, triangle } from "./engine/numbers.js";
import { COPIES, data, last, rowOf, sizes, snapshots, tokenizer, vocab } from "./run.js";

// Without a repeated letter, and cut where the next letter can be copied from the first word.
const WORDS = ["uncopyrightable", "UNCOPYRIGHTABLE"].map((word) => tokenizer.encode(word + word));

/** For repeated strings, a word that they could repeat; otherwise, the text that was measured. */
function openingText() {
  const [low, high] = data.periods;
  const word = low <= 15 && high >= 15 && WORDS.find((word) => word.every(({ id }) => id !== null));
  return word && !data.prompted ? word.slice(0, 22).map(({ id }) => id)
    : data.opening.text;
}

export const opening = openingText(); // ids

/** The head that is selected at first. */
export const HEAD = COPIES && !data.live && snapshots[last()].scores.induction
  ? indexOfLargest(snapshots[last()].scores.induction) : data.opening.head;

const kindOf = (token) => [/^ ?\p{L}+$/u, /^ ?\p{N}+$/u, /^\s+$/].findIndex((is) => is.test(token));

/** A text with another token at the place that the default head attends to from the end: the most
 * likely one of the same kind (and, in a repeated string, one that does not occur in it). */
export function madeOther({ T, attention, logP }, text) {
  const at = indexOfLargest(attention[HEAD].subarray(triangle(T - 1), triangle(T)));
  const old = text[at].id, present = new Set(COPIES ? text.map(({ id }) => id) : [old]);
  const likely = at ? ranked(rowOf(logP, at - 1), sizes.V) : vocab.map((_, id) => id);
  const id = likely.find((each) => !present.has(each) && kindOf(vocab[each]) === kindOf(vocab[old]));
  return text.map((token, t) => (t === at ? tokenizer.known(id ?? old) : token));
}
