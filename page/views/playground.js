// The form of the playground, and the buttons that train.

import { goTo } from "../actions.js";
import { last, snapshots } from "../run.js";
import {
  FIELDS, isShort, keepText, linkTo, pasted, problems, setting, SHORTEST,
} from "../setting.js";
import { follow, state } from "../state.js";
import { configFile, pause, savedRun, train } from "../training.js";
import { $, button, el, saveFile } from "./elements.js";
import { count } from "./format.js";
import { showLoss, showMoment } from "./training.js";
import { showFormation } from "./scores.js";

const mayReplace = () => !snapshots[last()].step ||
  confirm("A new model replaces this one. To keep it, first download its weights.");

/** A labeled choice; `choose` gets the value. */
function choice({ key, label, values }, choose) {
  const words = { true: "on", false: "off" };
  const input = el("select", { id: `set-${key}` }, ...values.map((value) =>
    el("option", { value }, words[value] ?? `${value}`)));
  input.value = setting[key];
  input.onchange = () => choose(values[input.selectedIndex], input);
  return el("label", {}, `${label} `, input);
}

const newModel = (field) => choice(field, (value, input) => {
  if (mayReplace()) location.search = linkTo({ [field.key]: value });
  else input.value = setting[field.key];
});
const shown = FIELDS.filter(({ label }) => label);
const said = el("output", { className: "small" });
const text = el("textarea", { id: "pasted", rows: 3, value: pasted, spellcheck: false,
  placeholder: `Paste a text of ${SHORTEST} characters or more. Until then the model reads this ` +
    "page's script." });

function useText() {
  if (isShort(text.value)) said.textContent = `The text needs ${SHORTEST} characters or more.`;
  else if (mayReplace()) {
    keepText(text.value);
    location.reload();
  }
}

function download() {
  const snapshot = snapshots[state.snapshot];
  saveFile("last.safetensors", savedRun(snapshot));
  said.textContent = `The weights of step ${count(snapshot.step)}, which is on show. Put the file ` +
    "into a folder of its own, as runs/mine/last.safetensors. Then: python sample.py mine";
}

function copy(words, note = "") {
  said.textContent = words + note;
  navigator.clipboard?.writeText(words).catch(() => {}); // it can be copied by hand
}

const copyConfig = () =>
  copy(configFile(), "Save this as mine.yaml. Then: python train.py mine.yaml");
const copyLink = () => copy(new URL(linkTo() + location.hash, location).href, " (" +
  (setting.task === "text" ? "without the pasted text" : "open it, and press Train") +
  "; optimizer, learning_rate, seed and others can be set in it, as &seed=2)");

const form = el("section", { id: "setting", ariaLabel: "Setting" },
  el("b", {}, "New model"), ...shown.slice(0, -1).map(newModel),
  button(download, { title: "last.safetensors, a run for sample.py and study.py" },
    "Download weights"),
  button(copyLink, {}, "Copy link"),
  button(copyConfig, { title: "that trains the same in PyTorch" }, "Copy config"),
  ...(setting.task === "text" ? [text, button(useText, {}, "Use this text")] : []), said);

const begin = (count) => {
  goTo(last()); // to watch
  train(count, pace);
};
const main = button(() => (state.training ? pause()
  : begin(setting.max_steps - snapshots[last()].step % setting.max_steps)), { id: "train" });
const one = button(() => begin(1), {}, "Step");
const pace = () => (setting.pace === "fastest" ? Infinity : setting.pace);

const note = el("p", { id: "training-note", role: "status" });

function showTraining() {
  const { step } = snapshots[last()], isDone = step > 0 && step % setting.max_steps === 0;
  main.textContent = state.training ? "Pause" : "Train";
  one.disabled = state.training;
  note.className = state.stopped ? "failed" : "";
  note.textContent = state.stopped
    ? `Stopped ${state.stopped}. The weights are the last finite ones; lower a learning rate in the link.`
    : state.edits.length ? "Edits affect neither training nor the scores of heads."
      : isDone && !state.training ? `Trained for ${count(step)} steps. Train goes on from there.` : "";
}

document.querySelector("h1").textContent = "Watch a GPT learn";
$("source").prepend("Press Train: a small GPT learns in this tab, offline. ");
$("loss").append("Its loss will be drawn here.");
$("notices").before(form);
$("notices").append(...problems.map((problem) =>
  el("p", { className: "trouble" }, problem)));
$("bar").firstElementChild.prepend(main,
  el("div", { className: "controls" }, one, choice(shown.at(-1), (value) => {
    setting.pace = value;
    history.replaceState(null, "", linkTo() + location.hash);
  })));
$("told").append(note);
document.body.classList.add("live");
follow("newest", showLoss, showMoment, showFormation);
for (const part of ["training", "stopped", "view"]) follow(part, showTraining);
