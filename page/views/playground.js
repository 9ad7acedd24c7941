// The form of the playground, and the buttons that train.

import { goTo } from "../actions.js";
import { last, snapshots } from "../run.js";
import {
  FIELDS, isShort, keepText, linkTo, pasted, problems, setting, SHORTEST, valueOf,
} from "../setting.js";
import { follow, state } from "../state.js";
import { command, pause, retrain, savedRun, train } from "../training.js";
import { $, button, el, saveFile } from "./elements.js";
import { count } from "./format.js";
import { showLoss, showMoment } from "./training.js";
import { showFormation } from "./scores.js";

const mayReplace = () => !snapshots[last()].step ||
  confirm("A new model replaces this one. To keep it, first download its weights.");
const IN_SIGHT = 6; // fields that are always visible

function inputOf(field) {
  const { key, values, live } = field;
  const words = { true: "on", false: "off" };
  const input = values
    ? el("select", {}, ...values.map((value) =>
      el("option", { value }, words[value] ?? `${value}`)))
    : el("input", { type: "number", step: "any" });
  input.id = `set-${key}`;
  input.value = setting[key];
  input.onchange = () => {
    const value = valueOf(field, input.value);
    said.textContent = "";
    if (value === undefined) {
      input.value = setting[key];
      said.textContent = `${field.label}: ${field.low} to ${field.high}`;
    } else if (!live) {
      if (mayReplace()) location.search = linkTo({ [key]: value });
      else input.value = setting[key];
    } else {
      retrain({ [key]: value });
      history.replaceState(null, "", linkTo() + location.hash);
    }
  };
  return input;
}

const labeled = (fields) =>
  fields.map((field) => el("label", {}, `${field.label} `, inputOf(field)));
const [folded, speed] = [FIELDS.slice(IN_SIGHT, -1), FIELDS.at(-1)];
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
  saveFile("last.safetensors", savedRun());
  said.textContent = "Put the file into a folder of its own, as runs/mine/last.safetensors. Then: " +
    "python sample.py mine";
}

function copy(words, note = "") {
  said.textContent = words + note;
  navigator.clipboard?.writeText(words).catch(() => {}); // it can be copied by hand
}

const copyCommand = () => copy(command());
const copyLink = () => copy(new URL(linkTo() + location.hash, location).href,
  setting.task === "text" ? " (without the pasted text)" : " (open it, and press Train)");

const form = el("section", { id: "setting", ariaLabel: "Setting" },
  el("div", { className: "controls" },
    el("b", {}, "New model"), ...labeled(FIELDS.slice(0, IN_SIGHT))),
  el("details", {}, el("summary", {}, "More settings"),
    el("div", { className: "controls" }, ...labeled(folded.filter(({ live }) => !live)),
      el("b", {}, "This model"), ...labeled(folded.filter(({ live }) => live)),
      button(download, { title: "last.safetensors, a run for sample.py and study.py" },
        "Download weights"),
      button(copyLink, {}, "Copy link"),
      button(copyCommand, { title: "that trains the same in PyTorch" }, "Copy as command"))),
  ...(setting.task === "text" ? [text, button(useText, {}, "Use this text")] : []), said);

const begin = (count) => {
  goTo(last()); // to watch
  train(count, pace);
};
const main = button(() => (state.training ? pause()
  : begin(setting.max_steps - snapshots[last()].step % setting.max_steps)), { id: "train" });
const one = button(() => begin(1), {}, "Step");
const pace = () => (setting.pace === "fastest" ? Infinity : setting.pace);

const note = el("p", { id: "training-note", className: "small", role: "status" });

function showTraining() {
  const { step } = snapshots[last()], isDone = step > 0 && step % setting.max_steps === 0;
  main.textContent = state.training ? "Pause" : "Train";
  one.disabled = state.training;
  note.textContent = state.stopped
    ? `Stopped ${state.stopped}. The weights are the last finite ones; lower a rate, and train again.`
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
  el("div", { className: "controls" }, one, ...labeled([speed])));
$("told").append(note);
document.body.classList.add("live");
follow("newest", showLoss, showMoment, showFormation);
for (const part of ["training", "stopped", "view"]) follow(part, showTraining);
