// The slider through training, with the loss, the stages of learning and Play.

import { goTo } from "../actions.js";
import { clamp } from "../engine/numbers.js";
import { shownOf, stagesOf } from "../engine/stages.js";
import { measures } from "../measures.js";
import { atStep, data, last, sizes, snapshots, UNIT } from "../run.js";
import { edited } from "../selection.js";
import { state } from "../state.js";
import { lineChart } from "./chart.js";
import { $, refill, term } from "./elements.js";
import { count, number, percent } from "./format.js";

const [howMany, ofText] = data.measured.split("validation sequences"); // or of random strings
const LEVELS = shownOf(data.baselines).map(([label, value]) => ({ label, value }));
const stages = () => stagesOf(snapshots, data.baselines, measures[0]);
export const stepsShown = () => snapshots.map(({ step }) => step);

const CURVES = [["in validation", "accuracy"], ["in training", "accuracy uniform"]]
  .map(([title, kind], i) => ({ title, kind, i }))
  .filter(({ i }) => Number.isFinite(snapshots[last()].accuracy[i])); // a text has no answers

export function showMoment() {
  const { view } = state, { step, lens_loss, accuracy } = snapshots[view.snapshot];
  const reached = stages().filter(({ at }) => at === view.snapshot)
    .flatMap(({ label }) => [" · ", term(label)]);
  const right = CURVES.map(({ title, i }) =>
    `${percent(accuracy[i])} ${title} (${i ? "dashed" : "right axis"})`).join(", ");
  const hasStep = atStep || last() || (data.live && step), { max_steps } = data.run.config.train;
  const end = Math.ceil(snapshots[last()].step / max_steps) * max_steps;
  refill($("moment"), ...(hasStep ? [term("step"), ` ${count(step)}${data.live ? ` of ${count(end)}` : ""} · `] : []),
    ...(right ? [term("accuracy"), `, answers only: ${right} · `] : []), term("loss"),
    `${right && ", all tokens:"} ${number(lens_loss[sizes.L])} ${UNIT} on ${howMany}`,
    ...(ofText === undefined ? [] : [term("validation sequences"), ofText]),
    edited() ? " without the edits" : `; ${number(view.pass.loss)} on this text`,
    ...reached);
  $("slider").ariaValueText = $("moment").textContent;
}

let shownFor; // what the chart shows

export function showLoss() {
  $("play").disabled = last() === 0;
  const { kept } = data;
  if ((last() === 0 && !kept?.steps) || !state.view) return;
  const { clientWidth, clientHeight } = $("loss");
  const looks = [state.view.snapshot, state.newest, clientWidth, clientHeight, kept?.map?.step].join();
  if (looks === shownFor) return; // typing does not change it
  shownFor = looks;
  $("slider").max = last();
  $("slider").value = state.snapshot;
  const marks = stages();
  const y = snapshots.map(({ lens_loss }) => lens_loss[sizes.L]);
  const title = `validation loss per snapshot, from ${number(y[0], 2)} to ${number(y[last()], 2)}`;
  const curves = CURVES.map(({ title, kind, i }) => (
    { title, kind, share: "accuracy", y: snapshots.map(({ accuracy }) => accuracy[i]) }));
  const ofA = !kept?.steps ? [] : [{ y: kept.loss, title: "A: loss" }, ...CURVES.map(({ title, kind, i }) =>
    ({ title: `A: ${title}`, kind, share: "accuracy", y: kept.accuracy[i] }))];
  lineChart($("loss"), [{ y, kind: "", title }, ...curves,
    ...ofA.map((line) => ({ ...line, kind: `${line.kind ?? ""} kept`, at: kept.steps }))],
    { label: title, places: stepsShown(), unit: "step", here: state.view.snapshot, dots: y, marks,
      levels: LEVELS, choose: goTo, values: data.live });
}

const PLAY = data.live ? "Replay" : "Play";
let playing = null; // a timer

function play() {
  if (playing === null && state.snapshot === last()) goTo(0);
  const on = () => (state.snapshot === last() ? play() : goTo(state.snapshot + 1));
  clearInterval(playing);
  playing = playing !== null ? null
    : setInterval(() => state.view?.snapshot === state.snapshot && on(),
      clamp(15_000 / last(), 150, 700));
  $("play").textContent = playing === null ? PLAY : "Stop";
}

if (last() === 0 && !data.live) $("bar").className = "still";
$("slider").max = last();
$("loss").onclick = () => $("slider").focus(); // so that the arrow keys continue
$("slider").oninput = () => goTo(Number($("slider").value));
Object.assign($("play"), { onclick: play, textContent: PLAY });
