// The check of the engine against PyTorch, once for each snapshot that is shown.

import { compute } from "./engine/pass.js";
import { floatsOf } from "./engine/weights.js";
import { data, editing, engineFor, sizes, snapshots } from "./run.js";

const TOLERANCE = 1e-4; // of a logit, relative to the largest if that is above 1

/** The engine's logits of the reference text against PyTorch's, after another text and an edit, so
 * that a row that should have been computed again would show: {error, allowed, agrees}. */
async function checkAgainstPyTorch(snapshot) {
  const engine = engineFor("check", snapshot);
  const { V } = sizes;
  const { reference } = data;
  const middle = Math.floor(reference.length / 2);
  const other = reference.map((id, t) => (t < middle ? id : (id + 1) % V));
  const edits = editing.toEngine(["L0H0=zero", `hide@${middle}`]);
  await compute(engine, other, edits, () => true);
  await compute(engine, reference, [], () => true);
  const logits = engine.take("logits", V);
  const { rows, logits: packed } = snapshots[snapshot];
  const expected = floatsOf(packed);
  let [error, largest] = [0, 0];
  rows.forEach((t, i) => {
    for (let v = 0; v < V; v++) {
      error = Math.max(error, Math.abs(logits[t * V + v] - expected[i * V + v])); // NaN stays
      largest = Math.max(largest, Math.abs(expected[i * V + v]));
    }
  });
  const allowed = TOLERANCE * Math.max(1, largest);
  return { error, allowed, agrees: error <= allowed };
}

const checks = []; // a promise for each snapshot; only one uses the engine at a time
let lastCheck = Promise.resolve();

export function check(snapshot) {
  if (!snapshots[snapshot].logits) return null; // nothing of PyTorch is in the playground
  checks[snapshot] ??= lastCheck = lastCheck.then(() => checkAgainstPyTorch(snapshot));
  return checks[snapshot];
}
