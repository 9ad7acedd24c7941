// The header and the dialog About: the run.

import { data } from "../data.js";
import { atStep, sizes, UNIT } from "../run.js";
import { $, el } from "./elements.js";
import { count, number } from "./format.js";

const ABOUT = { pydocs: "Python's reference manual" };

export function showHeader() {
  const { run } = data, { L, H, C, B } = sizes;
  const source = [run.config.data.source].flat().join(", ");
  const on = run.task ?? ABOUT[source] ?? source;
  document.title = `${run.name} · glassgpt`;
  $("name").textContent = run.name;
  $("lead").textContent = `${L} layer${L > 1 ? "s" : ""} of ${H} head${H > 1 ? "s" : ""}, ${count(run.parameters)} parameters, trained on ${on}`;
  $("lead").parentElement.title = $("lead").textContent;
  $("result").textContent =
    `${L} layer${L > 1 ? "s" : ""} x ${C} wide, ${H} heads, context ${B} · ` +
    `${count(run.parameters)} parameters · ` + (atStep && `loss${atStep}, on the whole validation ` +
    `split: ${number(run.val_loss)} ${UNIT} · `) + run.made;

  $("config").append(el("pre", {}, JSON.stringify(run.config, null, 1)));
}

$("help").onclick = () => $("about").showModal();
