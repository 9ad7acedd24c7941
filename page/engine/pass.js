// A pass of an engine over a text, with pauses for the browser's events, and its results.

import { largestOf, mean, range, sum, triangle } from "./numbers.js";

/** Let the browser handle events. (A timer would wait 4 ms; scheduler.yield starves timers.) */
const breathe = () => new Promise((resolve) => {
  const { port1, port2 } = new MessageChannel();
  port1.onmessage = () => resolve(port1.close());
  port2.postMessage(null);
});

let breath = 0; // when the browser last handled events

/** Let the browser handle events every 8 ms; return whether to continue. */
export async function mayGoOn(isCurrent) {
  if (performance.now() - breath > 8) {
    await breathe();
    breath = performance.now();
  } else await null; // so that the current event finishes first
  return isCurrent();
}

/** Run an engine; return false if its result is no longer wanted. */
export async function compute(engine, ids, edits, isCurrent) {
  engine.set(ids, edits);
  for (const _ of engine.compute()) if (!(await mayGoOn(isCurrent))) return false;
  return mayGoOn(isCurrent);
}

/** Replace logits (T, V) by log probabilities, in place. */
export function logProbabilities(logits, V) {
  for (let start = 0; start < logits.length; start += V) {
    const row = logits.subarray(start, start + V), largest = largestOf(row);
    const norm = largest + Math.log(row.reduce((total, x) => total + Math.exp(x - largest), 0));
    for (let i = 0; i < V; i++) row[i] -= norm;
  }
  return logits;
}

/** Copy the results of a pass, because the engine overwrites them in the next pass. */
export function passOf(engine) {
  const { tokens: ids, L, H, C, V } = engine, T = ids.length;
  const logits = engine.take("logits", V);
  const logP = logProbabilities(logits.slice(), V);
  const surprisal = Float64Array.from(ids, (id, t) => (t ? -logP[(t - 1) * V + id] : NaN));
  return {
    T, ids, logits, logP, surprisal,
    loss: T > 1 ? sum(surprisal.slice(1)) / (T - 1) : NaN,
    attention: range(L * H).map((i) => engine.attention(Math.floor(i / H), i % H)),
    queries: range(L).map((l) => engine.take(`q${l}`, C)),
    keys: range(L).map((l) => engine.take(`k${l}`, C)),
  };
}

/** The mean weight of a head on the last occurrence of a token, by its distance from the query; NaN
 * for a distance that no query has. A query may be that token itself, at distance 0. */
export function weightByDistance(weights, ids, token) {
  const found = ids.map(() => []);
  ids.forEach((_, q) => {
    const k = ids.lastIndexOf(token, q);
    if (k >= 0) found[q - k].push(weights[triangle(q) + k]);
  });
  return found.map(mean);
}

/** The mean weight of a head on the token after the previous occurrence of each token. */
export function inductionOn(weights, ids) {
  const found = ids.map((id, q) => [q, ids.lastIndexOf(id, q - 1)])
    .filter(([q, before]) => q && before >= 0);
  return mean(found.map(([q, before]) => weights[triangle(q) + before + 1]));
}

/** What a head adds to the residual stream at q by attending to k (weight, value, W_O), and what
 * this adds to every logit, relative to their mean (final norm with a fixed scale, unembedding). */
export function copied(engine, head, q, k, weight) {
  const { memory, at, L, H, C, D } = engine;
  const l = Math.floor(head / H), first = (head % H) * D;
  const value = at[`v${l}`] + k * C + first;
  const added = engine.written(`blocks.${l}.attn.out`, C, first, memory.subarray(value, value + D))
    .map((x) => weight * x);
  const scale = engine.normScale(at[`x${L}`] + q * C);
  const logits = engine.logitsOf(added), average = mean(logits);
  return { added, logits: logits.map((logit) => scale * (logit - average)) };
}

/** The activations of an MLP's neurons at t, and what each adds to a token's logit by the direct
 * path, with the scale of the final norm held fixed. */
export function neuronsOf(engine, l, t, token) {
  const { memory, at, hidden } = engine, down = at[`blocks.${l}.mlp.down.weight`];
  const { after: given } = engine.neurons(l, t), added = new Float64Array(hidden);
  const { direction, scale } = engine.toLogit(t, token);
  direction.forEach((x, c) => given.forEach((active, j) => {
    added[j] += scale * x * active * memory[down + c * hidden + j];
  }));
  return { given, added };
}
