// The run that the page shows: its data, its tokenizer, and engines with the weights of a snapshot.

import { Edits } from "./engine/edits.js";
import { Engine, sizesOf } from "./engine/engine.js";
import { Tokenizer } from "./engine/tokenizer.js";
import { bytesOf, floatsOf, unpackWeights } from "./engine/weights.js";

export const data = JSON.parse(document.getElementById("data").textContent);
export const vocab = data.vocab;
export const snapshots = data.snapshots;
export const LAST = snapshots.length - 1;
/** When it was measured, unless the model never was a run. */
export const atStep = data.run.step ? ` at step ${data.run.step.toLocaleString("en")}` : "";
export const COPIES = data.run.config.data.source === "repeat"; // trained on repeated strings
export const config = data.run.config.model;
export const sizes = sizesOf(config, data.shapes);
export const HEADS = sizes.L * sizes.H;
export const UNIT = `nats/${data.run.unit}`;
export const tokenizer = new Tokenizer(data.tokenizer, vocab);
export const editing = new Edits(sizes);

export const headName = (head) => `L${Math.floor(head / sizes.H)}H${head % sizes.H}`;

/** Row t of numbers (T, V). */
export const rowOf = (numbers, t) => numbers.subarray(t * sizes.V, (t + 1) * sizes.V);

const packedWeights = []; // of each snapshot shown; in the page, the last comes first
const means = []; // of each head's output, for the same snapshots

// Engines by purpose. Each keeps its last results, and computes only what changes.
const engines = {};

export function engineFor(purpose, snapshot) {
  const engine = (engines[purpose] ??= new Engine(config, data.shapes));
  if (engine.snapshot !== snapshot) {
    packedWeights[snapshot] ??=
      bytesOf(document.getElementsByClassName("weights")[(snapshot + 1) % (LAST + 1)].textContent);
    means[snapshot] ??= floatsOf(snapshots[snapshot].means);
    const { eight_bits } = snapshots[snapshot];
    engine.load(snapshots[snapshot],
      (weights) => unpackWeights(packedWeights[snapshot], eight_bits, data.shapes, weights),
      means[snapshot]);
    engine.snapshot = snapshot;
  }
  return engine;
}
