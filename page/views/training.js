// The slider through training, with the loss, the stages of learning and Play.

import { goTo } from "../actions.js";
import { data } from "../data.js";
import { clamp } from "../engine/numbers.js";
import { shownOf, stagesOf } from "../engine/stages.js";
import { measures } from "../measures.js";
import { atStep, last, own, sizes, snapshots, UNIT } from "../run.js";
import { edited } from "../selection.js";
import { change, state } from "../state.js";
import { lineChart } from "./chart.js";
import { $, refill, term } from "./elements.js";
import { count, number, percent } from "./format.js";

const [howMany, ofText] = data.measured.split("validation sequences"); // or of random strings
const LEVELS = shownOf(data.baselines).map(([label, value]) => ({ label, value }));
const stages = () => [...stagesOf(snapshots, data.baselines, measures[0]),
  ...(own() < last() ? [{ at: own(), label: "best step" }] : [])];
export const stepsShown = () => snapshots.map(({ step }) => step);

export const CURVES = [["in validation", "accuracy"], ["in training", "accuracy uniform"]]
  .map(([title, kind], i) => ({ title, kind, i }))
  .filter(({ i }) => Number.isFinite(snapshots[last()].accuracy[i])); // a text has no answers

/** Show what was measured of the snapshot on show, after its step and how many there will be. */
export function showMoment(of = "") {
  const { view } = state, { step, lens_loss, accuracy } = snapshots[view.snapshot];
  const reached = stages().filter(({ at }) => at === view.snapshot)
    .flatMap(({ label }) => [" · ", term(label)]);
  const right = CURVES.map(({ title, i }) =>
    `${percent(accuracy[i])} ${title} (${i ? "dashed" : "right axis"})`).join(", ");
  const hasStep = atStep || last() || (of && step);
  refill($("moment"), ...(hasStep ? [term("step"), ` ${count(step)}${of} · `] : []),
    ...(right ? [term("accuracy"), `, answers only: ${right} · `] : []), term("loss"),
    `${right && ", all tokens:"} ${number(lens_loss[sizes.L])} ${UNIT} on ${howMany}`,
    ...(ofText === undefined ? [] : [term("validation sequences"), ofText]),
    edited() ? " without the edits" : `; ${number(view.pass.loss)} on this text`,
    ...reached);
  $("slider").ariaValueText = $("moment").textContent;
}

/** Draw the loss and the accuracy of all snapshots, with other lines; `values` adds a vertical axis. */
export function showLoss(others = [], values = false) {
  $("play").disabled = last() === 0;
  $("slider").max = last();
  $("slider").value = state.snapshot;
  if ((last() === 0 && !others.length) || !state.view) return;
  const marks = stages();
  const y = snapshots.map(({ lens_loss }) => lens_loss[sizes.L]);
  const title = `validation loss per snapshot, from ${number(y[0], 2)} to ${number(y[last()], 2)}`;
  const curves = CURVES.map(({ title, kind, i }) => (
    { title, kind, share: "accuracy", y: snapshots.map(({ accuracy }) => accuracy[i]) }));
  lineChart($("loss"), [{ y, kind: "", title }, ...curves, ...others],
    { label: title, places: stepsShown(), unit: "step", here: state.view.snapshot, dots: y, marks,
      levels: LEVELS, choose: goTo, values });
}

let timer; // while the page plays

/** Go on to the next snapshot, and so on, while the page plays. */
export function showPlaying() {
  const { playing } = state;
  const on = () => (state.snapshot === last() ? change({ playing: false }) : goTo(state.snapshot + 1));
  clearInterval(timer);
  if (playing) timer = setInterval(() => state.view?.snapshot === state.snapshot && on(),
    clamp(15_000 / last(), 150, 700));
  $("play").textContent = playing ? "Stop" : $("play").value;
}

$("loss").onclick = () => $("slider").focus(); // so that the arrow keys continue
$("slider").oninput = () => goTo(Number($("slider").value));
$("play").onclick = () => {
  if (!state.playing && state.snapshot === last()) goTo(0);
  change({ playing: !state.playing });
};
