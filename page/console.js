// The model in the browser's console.

import { triangle } from "./engine/numbers.js";
import { generate } from "./engine/sampling.js";
import { config, engineFor, own, rowOf, snapshots, tokenizer, vocab } from "./run.js";

function read(text, { step = snapshots[own()].step } = {}) {
  const snapshot = snapshots.findIndex((each) => each.step === step);
  if (snapshot >= 0) return { engine: engineFor("console", snapshot), ids: idsOf(text) };
  throw new RangeError(`step ${step} must be one of ${snapshots.map((s) => s.step).join(", ")}`);
}

function idsOf(text) {
  const tokens = typeof text === "string" ? tokenizer.encode(text)
    : Array.from(text, (id) => tokenizer.known(id));
  const unseen = tokens.find(({ id, token }) => id === null || token === undefined);
  if (unseen) throw new RangeError(`the model never saw ${unseen.token ?? unseen.id}`);
  return tokens.map(({ id }) => id);
}

/** The page's only global, to which the playground adds. A text is a string, or at most block_size ids; `step`, a snapshot. */
globalThis.glassgpt = {
  config, vocab,
  get steps() { return snapshots.map(({ step }) => step); },

  /** Logits of the next token at every position, [T][V]. */
  logits(text, options) {
    const { engine, ids } = read(text, options), logits = engine.run(ids);
    return ids.map((_, t) => [...rowOf(logits, t)]);
  },

  /** Attention weights of a head: row t has the t + 1 weights of query t. */
  attention(text, layer, head, options) {
    const { engine, ids } = read(text, options);
    engine.run(ids);
    const weights = engine.attention(layer, head);
    return ids.map((_, t) => [...weights.slice(triangle(t), triangle(t + 1))]);
  },

  /** Generate `count` tokens after a text of any length, and return them as a string. */
  generate(text, count, { temperature = 0, topK = 0, seed = 1337, ...options } = {}) {
    const { engine, ids } = read(text, options);
    const drawn = [...generate(engine, ids, count, { temperature, topK, seed })].filter(Boolean);
    return tokenizer.decode(drawn.map(({ id }) => tokenizer.known(id)));
  },
};
