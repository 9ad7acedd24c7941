// The checks that the dialog About shows: those of the run, by lens/verify.py, and that of the engine
// against PyTorch, once for each snapshot that is shown.

import { compute } from "../engine/pass.js";
import { floatsOf } from "../engine/weights.js";
import { data } from "../data.js";
import { atStep, editing, engineFor, last, sizes, snapshots } from "../run.js";
import { change, state } from "../state.js";
import { $, cell, el, header, numeral, row } from "../views/elements.js";
import { power, tokensOf } from "../views/format.js";

const TOLERANCE = 1e-4; // of a logit, relative to the largest if that is above 1

/** The engine's logits of the reference text against PyTorch's, after another text and an edit, so
 * that a row that should have been computed again would show: {error, allowed, agrees}. */
async function checkAgainstPyTorch(snapshot) {
  const engine = engineFor("check", snapshot), { V } = sizes, { reference } = data;
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

/** Check the snapshot on show. */
export async function check(isCurrent) {
  const { snapshot } = state.view;
  checks[snapshot] ??= lastCheck = lastCheck.then(() => checkAgainstPyTorch(snapshot));
  const verdict = await checks[snapshot];
  if (isCurrent()) change({ verdict });
}

/** Show the difference from PyTorch; if it is too large, show nothing that the page computes. */
export function showEquality() {
  const { error, allowed, agrees } = state.verdict;
  const { eight_bits, rounding } = snapshots[state.snapshot];
  const about = tokensOf(data.reference.length);
  $("equality").textContent = agrees
    ? `The page matches PyTorch: the logits of ${about} are within ${power(error)} of ` +
      `PyTorch's (allowed: ${power(allowed)}). The weights are rounded to ` +
      `${eight_bits ? "8 bits" : "half precision"}, which changes a logit by at most ` +
      `${power(rounding)}.`
    : `This page does not match PyTorch: a logit differs by ${power(error)} from PyTorch's, more ` +
      `than the allowed ${power(allowed)}. Its results would be wrong, so none are shown.`;
  $("equality").className = agrees ? "quiet" : "trouble";
  $(agrees ? "proof" : "notices").append($("equality")); // a failure is visible without About
  document.body.classList.toggle("untrusted", !agrees);
}

export function showChecks() {
  const { checks } = data;
  $("checks").hidden = !checks.length;
  const [passed, failed] = ["passed", "failed"].map((verdict) =>
    checks.filter((check) => check.verdict === verdict).length);
  const summary = $("checks").firstElementChild;
  summary.textContent = `${passed} of ${passed + failed} checks of the run passed`;
  summary.className = failed ? "failed" : "";
  $("checks").append(el("table", {},
    row(...["check", "dtype", "relative error", "tolerance", "verdict", "where"].map((name) =>
      header(name))),
    ...checks.map(({ name, dtype, error, tolerance, verdict, where }) => row(
      cell(name), cell(dtype), numeral(power(error)), numeral(power(tolerance)),
      el("td", { className: /^(passed|failed)$/.test(verdict) ? verdict : "" }, verdict),
      cell(el("code", {}, where))))));
  const omitted = data.saved - snapshots.length;
  $("omitted").hidden = (last() > 0 && !omitted) || !atStep;
  $("omitted").textContent = omitted
    ? `${snapshots.length} of ${data.saved} snapshots are in this page.`
    : "This run has one snapshot. To see heads form, train with --train.snapshots.";
}
