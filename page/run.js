// The run that the page shows: its data, its tokenizer, and engines with the weights of a snapshot.
// In the playground, training.js adds snapshots.

import { data } from "./data.js";
import { Edits } from "./engine/edits.js";
import { Engine, sizesOf } from "./engine/engine.js";
import { Tokenizer } from "./engine/tokenizer.js";
import { bytesOf, floatsOf, unpackWeights } from "./engine/weights.js";

export const vocab = data.vocab;
export const snapshots = data.snapshots;
export const last = () => snapshots.length - 1;
/** The snapshot that the page opens with: the run's weights or, in the playground, the newest. */
export const own = () => snapshots.findLastIndex(({ step }) => step === (data.run.step ?? step));
/** When it was measured, unless the model never was a run. */
export const atStep = data.run.step ? ` at step ${data.run.step.toLocaleString("en")}` : "";
export const COPIES = data.periods.length > 0; // trained on repeated strings
export const config = data.run.config.model;
export const sizes = sizesOf(config, data.shapes);
export const HEADS = sizes.L * sizes.H;
export const UNIT = `nats/${data.run.unit}`;
export const tokenizer = new Tokenizer(data.tokenizer, vocab);
export const editing = new Edits(sizes, config);

export const layerAndHead = (head) => [Math.floor(head / sizes.H), head % sizes.H];
export const headName = (head) => `L${Math.floor(head / sizes.H)}H${head % sizes.H}`;

/** Row t of numbers (T, V). */
export const rowOf = (numbers, t) => numbers.subarray(t * sizes.V, (t + 1) * sizes.V);

// Engines by purpose. Each keeps its last results, and computes only what changes.
const engines = {};

export function engineFor(purpose, index) {
  const engine = (engines[purpose] ??= new Engine(config, data.shapes));
  const snapshot = snapshots[index], { eight_bits, weights } = snapshot;
  snapshot.headMeans ??= floatsOf(snapshot.means);
  engine.load(snapshot, (room) => {
    if (weights) return room.set(weights);
    // They are in the page, where its own come first.
    const place = index === own() ? 0 : index + (index < own());
    const packed = document.getElementsByClassName("weights")[place];
    snapshot.packed ??= bytesOf(packed.textContent);
    unpackWeights(snapshot.packed, eight_bits, data.shapes, room);
  }, snapshot.headMeans);
  return engine;
}
