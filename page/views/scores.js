// The panel of the selected head's scores, and how they formed.

import { goTo, selectHead } from "../actions.js";
import { range, ranked } from "../engine/numbers.js";
import { measures } from "../measures.js";
import { data } from "../data.js";
import { headName, HEADS, last, own, snapshots, UNIT } from "../run.js";
import { state } from "../state.js";
import { lineChart } from "./chart.js";
import { $, button, cell, el, header, numeral, row, term } from "./elements.js";
import { count, number, signed } from "./format.js";
import { UNIFORM_GUESS } from "./legends.js";
import { stepsShown } from "./training.js";

export function showScores() {
  const { head, measure, view } = state;
  const withError = ({ at, error }) => `${signed(at()[head])} ± ${number(error[head], 4)}`;
  $("scores-title").textContent =
    `Scores of ${headName(head)} without edits${last() ? ", and how they formed" : ""}`;
  const rows = measures.map((each) => el("tr", { className: each === measure ? "shown" : "" },
    cell(each.name, el("small", {}, `${each.formula} (${each.source})`)),
    numeral(each.error ? withError(each) : number(each.at(view.snapshot)[head])),
    numeral(each.error ? "" : number(each.uniform))));
  $("scores").replaceChildren(
    row(header("head score"), header("value"), header("uniform")), ...rows);
  const values = measure.at(view.snapshot);
  $("ranking").replaceChildren(`Heads by ${measure.name}: `, ...ranked(values, HEADS).map((each) =>
    button(() => selectHead(each), { ariaPressed: each === head },
      `${headName(each)} ${measure.text(values[each])}`)));
  const { period, first, second } = snapshots[view.snapshot].copying ?? {};
  $("copying").replaceChildren(`Scores: on ${data.measured}; those on [r, r]: on random strings. `);
  if (period) $("copying").append(`Copying: on random strings of ${count(period)} distinct tokens, ` +
    `each repeated, the loss is ${number(first)} ${UNIT} on the first copy and ${number(second)} ` +
    `on the second. A uniform guess has ${number(UNIFORM_GUESS)}` +
    `${second < UNIFORM_GUESS ? "" : ": there is no copying yet"}. An `, term("induction"), " score measures a pattern; copying is the behavior.");
  showFormation();
}

/** Draw the selected score of every head at each snapshot. */
export function showFormation() {
  if (!state.view) return;
  const { measure, head } = state;
  $("formation").hidden = last() === 0;
  $("formation-chart").hidden = Boolean(measure.error);
  $("formation-note").textContent = measure.error
    ? `Ablation is measured only at step ${count(snapshots[own()].step)}; choose another score.`
    : `${measure.name} of each head at each snapshot; thick: ${headName(head)}; dashed: uniform ` +
      "attention. Click to go to a snapshot.";
  if (measure.error || last() === 0) return;
  const others = range(HEADS).filter((other) => other !== head);
  const lines = [...others, head].map((each) => ({
    y: snapshots.map((_, i) => measure.at(i)[each]),
    kind: each === head ? "chosen" : "",
    title: headName(each),
  }));
  lineChart($("formation-chart"), lines, {
    label: `${measure.name} of every head over training`, places: stepsShown(), unit: "step",
    here: state.view.snapshot, choose: goTo, values: true, level: measure.uniform,
  });
}
