// The header and the dialog About: the run, its checks, and the difference from PyTorch.

import { atStep, data, last, sizes, snapshots, UNIT } from "../run.js";
import { state } from "../state.js";
import { $, cell, el, header, numeral, row } from "./elements.js";
import { count, number, power, tokensOf } from "./format.js";

const ABOUT = { pydocs: "Python's reference manual" };

export function showHeader() {
  const { run, checks } = data, { L, H, C, B } = sizes;
  const source = [run.config.data.source].flat().join(", ");
  const on = data.about ? "" : `, trained on ${run.task ?? ABOUT[source] ?? source}`;
  document.title = `${run.name} · glassgpt`;
  $("name").textContent = run.name;
  $("lead").textContent = `${L} layer${L > 1 ? "s" : ""} of ${H} head${H > 1 ? "s" : ""}, ${count(run.parameters)} parameters${on}`;
  $("lead").parentElement.title = $("lead").textContent;
  $("source").textContent = data.about ?? "";
  $("result").textContent =
    `${L} layer${L > 1 ? "s" : ""} x ${C} wide, ${H} heads, context ${B} · ` +
    `${count(run.parameters)} parameters · ` + (atStep && `loss${atStep}, on the whole validation ` +
    `split: ${number(run.val_loss)} ${UNIT} · `) + (data.live ? "trained in this page" : `${run.made} · PyTorch ${run.torch}`);

  $("config").append(el("pre", {}, JSON.stringify(run.config, null, 1)));
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

/** Show the difference from PyTorch; if it is too large, show nothing that the page computes. */
export function showEquality(verdict) {
  if (!verdict) {
    $("equality").textContent = "This page trains and computes by itself, without PyTorch.";
    return;
  }
  const { error, allowed, agrees } = verdict;
  const { eight_bits, rounding } = snapshots[state.snapshot];
  const about = tokensOf(data.reference.length);
  $("equality").textContent = agrees
    ? `The page matches PyTorch: the logits of ${about} are within ${power(error)} of ` +
      `PyTorch's (allowed: ${power(allowed)}). The weights are rounded to ` +
      `${eight_bits ? "8 bits" : "half precision"}, which changes a logit by at most ` +
      `${power(rounding.logit)}, and the loss on ${data.measured} by ${power(rounding.nats)} nats.`
    : `This page does not match PyTorch: a logit differs by ${power(error)} from PyTorch's, more ` +
      `than the allowed ${power(allowed)}. Its results would be wrong, so none are shown.`;
  $("equality").className = agrees ? "quiet" : "trouble";
  $(agrees ? "proof" : "notices").append($("equality")); // a failure is visible without About
  document.body.classList.toggle("untrusted", !agrees);
}

$("help").onclick = () => $("about").showModal();
