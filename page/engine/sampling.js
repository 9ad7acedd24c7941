// Sampling: how the next token is chosen, and a text token after token.

import { windowStart } from "./engine.js";
import { ranked, sum } from "./numbers.js";
import { Random } from "./random.js";

/** A number in [0, 1) from seed and position alone, so that what was shown is what is written. */
const chance = (seed, position) => new Random(2 ** 32 * position + seed).uniform();

/** The next token, from a row of logits; temperature 0 takes the most likely. */
function draw(logits, { temperature, topK }, random) {
  const all = ranked(logits, logits.length), least = logits[all[topK - 1]] ?? -Infinity;
  const order = all.filter((id) => !(logits[id] < least)); // with what ties with the last
  if (!(temperature > 0)) return order[0];
  const likelihood = order.map((id) => Math.exp((logits[id] - logits[order[0]]) / temperature));
  let left = random * sum(likelihood);
  return order[likelihood.findIndex((p) => (left -= p) < 0)] ?? order[0];
}

/** Token after token, `count` of them, each as {id}; null while it computes. What the model sees of a
 * long text moves on by half a window, as in model/generate.py; edits of positions stay behind. */
export function* generate(engine, ids, count, settings, edits = []) {
  const { B, V } = engine, text = [...ids];
  const first = windowStart(text.length - 1, B);
  while (text.length < ids.length + count) {
    const start = windowStart(text.length - 1, B);
    const there = edits.filter((edit) => start === first || !("hide" in edit || "position" in edit));
    engine.set(text.slice(start), there);
    for (const _ of engine.compute()) yield null;
    const row = engine.at.logits + (text.length - start - 1) * V;
    const logits = engine.memory.subarray(row, row + V);
    const id = draw(logits, settings, chance(settings.seed, text.length));
    text.push(id);
    yield { id };
  }
}
