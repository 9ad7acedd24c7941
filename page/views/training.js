// The slider through training, with the loss, the stages of learning and Play.

import { goTo } from "../actions.js";
import { clamp } from "../engine/numbers.js";
import { shownOf, stagesOf } from "../engine/stages.js";
import { atStep, data, LAST, sizes, snapshots, UNIT } from "../run.js";
import { edited } from "../selection.js";
import { state } from "../state.js";
import { lineChart } from "./chart.js";
import { $, refill, term } from "./elements.js";
import { count, number, percent } from "./format.js";

const MARKS = stagesOf(snapshots, data.baselines);
const LEVELS = shownOf(data.baselines).map(([label, value]) => ({ label, value }));
export const STEPS_SHOWN = snapshots.map(({ step }) => step);

const CURVES = [["on validation sequences", "accuracy"], ["in training", "accuracy uniform"]]
  .map(([title, kind], i) => (
    { title, kind, share: "accuracy", y: snapshots.map(({ accuracy }) => accuracy[i]) }))
  .filter(({ y }) => Number.isFinite(y[LAST])); // a text has no answers

export function showMoment() {
  const { view } = state, { step, lens_loss, accuracy } = snapshots[view.snapshot];
  const reached = MARKS.filter(({ at }) => at === view.snapshot)
    .flatMap(({ label }) => [" · ", term(label)]);
  refill($("moment"), ...(atStep ? [term("step"), ` ${count(step)} · `] : []), term("loss"),
    ` ${number(lens_loss[sizes.L])} ${UNIT} on ${count(data.sequences)} `,
    term("validation sequences"),
    edited() ? " without the edits" : `, ${number(view.pass.loss)} on this text`,
    ...(CURVES.length ? [" · ", term("accuracy"), ` ${percent(accuracy[0])} (solid line), ` +
      `${percent(accuracy[1])} in training (dashed)`] : []), ...reached);
  $("slider").ariaValueText = $("moment").textContent;
}

let shownFor; // what the chart shows

export function showLoss() {
  if (LAST === 0 || !state.view) return;
  const looks = [state.view.snapshot, $("loss").clientWidth, $("loss").clientHeight].join();
  if (looks === shownFor) return; // typing does not change it
  shownFor = looks;
  const y = snapshots.map(({ lens_loss }) => lens_loss[sizes.L]);
  const title = `validation loss per snapshot, from ${number(y[0], 2)} to ${number(y[LAST], 2)}`;
  lineChart($("loss"), [{ y, kind: "", title }, ...CURVES],
    { label: title, places: STEPS_SHOWN, here: state.view.snapshot, dots: y, marks: MARKS,
      levels: LEVELS, choose: goTo });
}

let playing = null; // a timer

export function play() {
  if (LAST === 0) return;
  if (playing === null && state.snapshot === LAST) goTo(0);
  const on = () => (state.snapshot === LAST ? play() : goTo(state.snapshot + 1));
  clearInterval(playing);
  playing = playing !== null ? null
    : setInterval(() => state.view?.snapshot === state.snapshot && on(),
      clamp(15_000 / LAST, 150, 700));
  $("play").textContent = playing === null ? "Play" : "Stop";
}

if (LAST === 0) $("bar").className = "still";
$("slider").max = LAST;
$("loss").onclick = () => $("slider").focus(); // so that the arrow keys continue
$("slider").oninput = () => goTo(Number($("slider").value));
$("play").onclick = play;
