// The form of the playground, and the buttons that train, save and open.

import { goTo } from "../actions.js";
import { address } from "../address.js";
import { range } from "../engine/numbers.js";
import { readCheckpoint } from "../engine/safetensors.js";
import { data } from "../data.js";
import { COPIES, HEADS, last, sizes, snapshots, UNIT } from "../run.js";
import {
  carried, carry, explained, FIELDS, impossible, inWords, isShared, isShort, linkTo, opened, problems,
  setting, SHORTEST, untrainable, valueOf,
} from "./setting.js";
import { change, state } from "../state.js";
import { configFile, isHigh, savedRun, train } from "./training.js";
import { comparison, goToA, keep, other } from "./compare.js";
import { $, button, el, refill, saveFile } from "../views/elements.js";
import { count, number } from "../views/format.js";
import { showMoment } from "../views/training.js";

const mayReplace = () => last() === 0 || state.kept?.steps?.at(-1) === snapshots[last()].step || confirm(
  "Another model replaces this one. To keep it, press Cancel, then Download: Open brings it back.");

const said = el("p", { id: "said", popover: "auto", role: "status" });
function say(words) {
  said.textContent = words;
  said.togglePopover(true);
}

/** A labeled choice, which explains itself; `choose` gets the value. */
function choice(field, choose) {
  const { key, label, values } = field, chosen = setting[key];
  const all = values?.includes(chosen) ? values : [chosen, ...values ?? []];
  const input = values ? el("select", {}, ...all.map((value) => el("option", {}, inWords(value))))
    : el("input", { type: "number", step: "any", value: chosen });
  Object.assign(input, { id: `set-${key}`, disabled: opened !== null && !["task", "pace"].includes(key),
    selectedIndex: all.indexOf(chosen),
    onchange: () => choose(values ? `${all[input.selectedIndex]}` : input.value, input) });
  const labeled = el("label", {}, `${label} `, input);
  labeled.dataset.says = explained(field);
  return labeled;
}

const possible = (field) => (field.key !== "n_kv_head" ? field : { ...field,
  values: field.values.filter((n_kv_head) => isShared({ ...setting, n_kv_head })) });
/** What the address keeps of the choices: another model may have neither the head nor the token. */
const hashFor = ({ key }) => (["task", "n_layer", "n_head"].includes(key)
  ? state.more ? "#more=true" : "" : location.hash);
const newModel = (field) => choice(possible(field), (text, input) => {
  const value = valueOf(field, text);
  if (value === undefined) say(impossible(field, text));
  else if (mayReplace()) location.href = linkTo(state.kept, { [field.key]: value }) + hashFor(field);
  else if (field.values) input.value = inWords(setting[field.key]);
});
const [task, layers, heads, width, ...others] = FIELDS.filter(({ key }) => key !== "pace");
const steps = FIELDS.find(({ key }) => key === "pace");

// The text to train on, if that is the task.
const text = el("textarea", { id: "pasted", rows: 2, value: carried.text ?? "", spellcheck: false,
  placeholder: `Paste a text of ${SHORTEST} characters or more. Until then the model trains on ` +
    "stories.", oninput: showPasted });
const pasted = el("output");
const pickedText = el("input", { type: "file", hidden: true,
  onchange: () => pickedText.files[0] && readText(pickedText.files[0]), onclick() { this.value = ""; } });
const isPasted = () => setting.task === "text" && text.value !== (carried.text ?? "");

async function readText(file) {
  text.value = await file.text();
  showPasted();
}

function showPasted() {
  const size = Array.from(text.value).length;
  pasted.textContent = size && isShort(text.value) ? `${SHORTEST - size} more characters are needed.`
    : `${isPasted() ? "Train takes" : "The model has"} ` +
      (size ? `this text: ${count(size)} characters.` : "stories.");
}

/** Make a model of the pasted text, which trains once the page is there again. */
function useText(steps) {
  if (text.value && isShort(text.value)) say(`The text needs ${SHORTEST} characters or more.`);
  else if (mayReplace()) {
    carry({ text: text.value, steps });
    location.reload();
  }
}

function download() {
  const snapshot = snapshots[state.snapshot];
  const name = `${setting.task}-${snapshot.step}.safetensors`;
  saveFile(name, savedRun(snapshot));
  say(`${name} has the weights of step ${count(snapshot.step)}, which is on show. Open, here, brings ` +
    "them back. For Python, put the file into a folder of its own, as runs/mine/last.safetensors. " +
    "Then: python sample.py mine");
}

/** Show another model instead, if the page can compute what is in the file. */
async function open(file) {
  try {
    const { text, weights } = readCheckpoint(new Uint8Array(await file.arrayBuffer()), data);
    if (!mayReplace()) return;
    const url = await new Promise((resolve) => {
      const reader = Object.assign(new FileReader(), { onload: () => resolve(reader.result) });
      reader.readAsDataURL(new Blob([weights]));
    });
    carry({ file: { name: file.name, text, weights: url.slice(url.indexOf(",") + 1) } });
    const search = `?${new URLSearchParams({ file: file.name })}`;
    if (search === location.search) location.reload();
    else location.href = search + hashFor({ key: "task" });
  } catch ({ message }) {
    say(`${file.name} cannot be opened: ${message}.`);
  }
}

function copy(words, note = "") {
  say(words + note);
  navigator.clipboard?.writeText(words).catch(() => {}); // it can be copied by hand
}

const copyConfig = () =>
  copy(configFile(), "Save this as mine.yaml. Then: python train.py mine.yaml");
const copyLink = () => (opened ? say("A link cannot hold an opened model. Hand out its file.")
  : copy(new URL(linkTo(state.kept) + address(), location).href, ` (${setting.task === "text"
    ? "without the pasted text" : "open it, and press Train"}${location.protocol === "file:"
    ? "; on another machine, open a copy of this page, and add what follows .html" : ""})`));

const picked = el("input", { type: "file", accept: ".safetensors", hidden: true,
  onchange: () => picked.files[0] && open(picked.files[0]), onclick() { this.value = ""; } });
for (const type of ["dragover", "drop"]) {
  addEventListener(type, (event) => {
    if (!event.dataTransfer.types.includes("Files")) return; // but a text
    event.preventDefault();
    const [file] = event.dataTransfer.files;
    if (type === "drop") (setting.task !== "text" || /\.safetensors$/.test(file.name) ? open : readText)(file);
  });
}

const more = el("details", { id: "more-settings", className: "extra", onkeydown({ key }) {
  if (key === "Escape" && !said.matches(":popover-open")) this.open = false;
} }, el("summary", {}, "Settings"), el("div", {},
  ...others.map(newModel),
  button(copyConfig, { title: "that trains the same in PyTorch" }, "Copy config")));

const begin = (count) => {
  if (isPasted()) return useText(count);
  goTo(last()); // to watch
  more.open = false;
  train(count, pace);
};
const main = button(() => (state.training ? change({ training: false })
  : begin(setting.max_steps - snapshots[last()].step % setting.max_steps)), { id: "train" });
const one = button(() => begin(1), {}, "Step");
const pace = () => (setting.pace === "fastest" ? Infinity : setting.pace);
const toA = button(() => {
  if (!state.kept || state.kept.steps) keep();
  else if (mayReplace()) goToA();
}, { title: "keeps the curve, and the map of the selected head, to compare with the next model" });

export function showTraining() {
  const { training, stopped, kept } = state, { step } = snapshots[last()];
  const isDone = step > 0 && step % setting.max_steps === 0;
  main.textContent = training ? "Pause" : isDone ? "Train on" : "Train";
  main.disabled = untrainable !== "";
  one.disabled = training || main.disabled;
  showPasted();
  toA.textContent = kept && !kept.steps ? "Go to A" : other() ? "Keep, go to B" : "Keep as A";
  toA.className = kept || other() ? "" : "extra";
  toA.disabled = training || opened !== null || (last() === 0 && toA.textContent !== "Go to A");
  const compared = comparison(), watch = data.about || fromFile();
  $("source").className = stopped ? "failed" : "";
  refill($("source"), ...(stopped ? [`Stopped ${stopped}. The weights are the last finite ones; lower a ` +
    "learning rate: press More, then Settings."] : compared.length ? compared
    : other() ? [`This is A: ${step ? "" : "train it, then "}press Keep, go to B.`]
      : [opened ? "" : isDone ? isLate() ? "Not yet? Press Train on. Watch: " : "Now press 2 Attend. Watch: "
        : step ? "Watch: " : "Press Train: ", watch]));
}

/** Show the moment, of as many steps as the presses on Train will make. */
export const showMomentOf = () => showMoment(` of ${
  count(Math.ceil(snapshots[last()].step / setting.max_steps) * setting.max_steps)}`);

/** Whether an induction head can form, but has not. */
const isLate = () => COPIES && sizes.L > 1 && !range(HEADS).some(isHigh);

function fromFile() {
  const { header: { state: { step, val_loss } } } = opened;
  return `${opened.name}, step ${count(step)}, validation loss ${number(val_loss)} ${UNIT}. ` +
    (untrainable ? `Train is disabled: ${untrainable}.`
      : "Train goes on from its weights, with a new state of the optimizer.");
}

const extra = (...controls) => el("span", { className: "controls extra" }, ...controls);
document.querySelector("h1").textContent = "Watch a GPT learn";
document.querySelector("h1").after(el("section", { id: "setting", ariaLabel: "Setting" },
  newModel(task), extra(...[layers, heads, width].map(newModel)), more));
if (!untrainable) $("loss").append("The loss will be drawn here.");
if (setting.task === "text") {
  $("source").before(el("section", { id: "training-text", ariaLabel: "Text to train on" }, text,
    button(() => pickedText.click(), {}, "Text file"), pickedText, pasted));
}
$("notices").append(said, ...problems.map((problem) => el("p", { className: "trouble" }, problem)));
$("bar").firstElementChild.prepend(main, $("play"), extra(one, choice(steps, (text) => {
  setting.pace = valueOf(steps, text);
  history.replaceState(null, "", linkTo(state.kept) + location.hash);
})), extra(button(copyLink, {}, "Copy link"), button(download, {}, "Download"),
  button(() => picked.click(), { title: "a .safetensors, which can also be dropped on the page" }, "Open"),
  picked), toA);
$("play").value = $("play").textContent = "Replay";
/** Go on with what a reload interrupted. */
export function goOn() {
  const { steps } = carried;
  carry({ steps: undefined });
  if (steps) begin(steps);
}

$("equality").textContent = "This page trains and computes by itself, without PyTorch.";
document.body.classList.add("live");
