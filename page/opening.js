// The default text.

import { indexOfLargest, range, sum } from "./engine/numbers.js";
import { data, sizes, vocab } from "./run.js";

/** Short, so that its letters fit on the axes of a map and there is room to type; of the validation
 * texts, the first one with the most words. */
function openingText() {
  const { prompt, texts, copies } = data;
  const length = Math.min(copies ? 40 : 32, Math.ceil(sizes.B * 0.75));
  if (!texts.length) return prompt;
  if (copies) return prompt.slice(0, length);
  const isBlank = vocab.map((token) => /^\s+$/.test(token));
  const stretches = texts.flatMap((ids) => range(Math.max(0, ids.length - length))
    .filter((start) => !isBlank[ids[start]] && (!start || isBlank[ids[start - 1]]))
    .map((start) => ids.slice(start, start + length)));
  const isWord = vocab.map((token) => (/^ ?\p{L}+$/u.test(token) ? 1 : 0));
  return stretches[indexOfLargest(stretches.map((ids) => sum(ids.map((id) => isWord[id]))))] ??
    prompt.slice(0, length);
}

export const opening = openingText(); // ids
