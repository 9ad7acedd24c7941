// The setting of the playground, from the part of the address after ? or from an opened file, and the
// data of a run that begins with it. main.js imports this before the modules that show a run.

import { data } from "../data.js";
import { Measure } from "../engine/measure.js";
import { sum } from "../engine/numbers.js";
import { generate } from "../engine/sampling.js";
import { modelOf } from "../engine/safetensors.js";
import { countOf, initialize, shapesOf } from "../engine/shapes.js";
import { TASKS } from "../engine/tasks.js";
import { defaultWorkers } from "../engine/trainer.js";
import { floatsOf } from "../engine/weights.js";

export const script = document.querySelector("script[type=module]").textContent;

const { tasks, help, usual, supported } = data; // by __init__.py

/** What the form and the address can set: `values` to choose from, or a number from `low` to `high`;
 * and the lesson that is about it. */
export const FIELDS = [
  { key: "task", label: "task", values: Object.keys(tasks) },
  { key: "n_layer", label: "layers", values: [1, 2, 3, 4], lesson: 17 },
  { key: "n_head", label: "heads", values: [1, 2, 4, 8], lesson: 7 },
  { key: "n_embd", label: "width", values: [16, 32, 48, 64, 96, 128], lesson: 4 },
  { key: "positions", label: "positions", values: supported.positions, lesson: 6 },
  { key: "qk_norm", label: "QK-norm", values: [true, false], lesson: 4 },
  { key: "n_kv_head", label: "key-value heads", values: [null, 1, 2, 4, 8] },
  { key: "mlp_ratio", label: "MLP ratio", values: [0, 1, 2, 4], lesson: 8 },
  { key: "window", label: "window", low: 0, high: 1e9, whole: true },
  { key: "activation", label: "activation", values: supported.activation, lesson: 14 },
  { key: "ngrams", label: "n-grams", values: [1, 2, 3], lesson: 15 },
  { key: "optimizer", label: "optimizer", values: ["muon", "adamw"], lesson: 9 },
  { key: "seed", label: "seed", low: 0, high: 2 ** 32 - 1, whole: true, lesson: 14 },
  { key: "muon_learning_rate", label: "rate of Muon", low: 0, high: 1e30, lesson: 9 },
  { key: "learning_rate", label: "rate of AdamW", low: 0, high: 1e30, lesson: 9 },
  { key: "weight_decay", label: "weight decay", low: 0, high: 1e30, lesson: 9 },
  { key: "max_steps", label: "steps", low: 1, high: 1e9, whole: true },
  { key: "batch_size", label: "batch size", low: 1, high: 4096, whole: true },
  { key: "pace", label: "steps/s", values: ["fastest", 20, 5, 1] },
  { key: "workers", label: "workers", values: [1, 2, 3, 4] },
];
/** A value as the form shows it. */
export const inWords = (value) => ({ true: "on", false: "off", null: "as heads" }[value] ?? `${value}`);
const COMPARED = FIELDS.filter(({ key }) => !["task", "pace", "workers"].includes(key));

/** What a field sets, in a sentence, and where the lessons are about it. */
export function explained({ key, lesson }) {
  const says = { ...help, task: tasks[setting.task]?.about,
    pace: "Number of steps a second at most, so that one can watch",
    workers: "Number of workers, which each compute a part of every batch" }[key];
  return `${key}: ${says}.${lesson ? ` Lesson ${lesson}.` : ""}`.replace("..", ".");
}

/** The value of a field from text, or undefined if it is not possible. */
export function valueOf({ values, low, high, whole }, text) {
  if (values) return values.find((value) => `${value}` === text);
  const value = text.trim() ? Number(text) : NaN;
  return low <= value && value <= high && (!whole || Number.isInteger(value)) ? value : undefined;
}

export const impossible = ({ key, values, low, high }, text) =>
  `${key} cannot be ${text}, but ${values?.map(String).join(", ") ?? `${low} to ${high}`}.`;

/** Whether each key-value head serves the same number of heads. */
export const isShared = ({ n_head, n_kv_head }) => n_head % (n_kv_head ?? 1) === 0;

// ------------------------------------------------------- what a tab keeps over a reload
// A tab's name outlives a reload, also of a file on the disk, and has room for a model.
const KEPT = "glassgpt:";
export const carried = // {text, steps, file, A, next}: see what calls `carry`
  window.name.startsWith(KEPT) ? JSON.parse(window.name.slice(KEPT.length)) : {};
export function carry(changes) {
  Object.assign(carried, changes);
  window.name = KEPT + JSON.stringify(carried);
}

// --------------------------------------------------------------------------- the setting
const RATES = { muon: 0.01, adamw: 0.003 }; // of AdamW, with Muon and alone

function defaultsOf(task, optimizer = tasks[task].train.optimizer) {
  const { model, train } = tasks[task];
  const other = optimizer === train.optimizer ? {} : { optimizer, learning_rate: RATES[optimizer] };
  return { task, workers: defaultWorkers(), pace: 20, ...model, ...train, ...other };
}

export const problems = []; // of the address, in words
const ofA = {}; // what the address says of A, the run to compare with

function readAddress() {
  const asked = [...new URLSearchParams(location.search)];
  const { task, optimizer, file } = Object.fromEntries(asked);
  const found = defaultsOf(Object.hasOwn(tasks, task) ? task : "repeat",
    Object.hasOwn(RATES, optimizer) ? optimizer : undefined);
  for (const [name, text] of asked.filter(([name]) => name !== "file")) {
    const isOfA = name.startsWith("A."), key = isOfA ? name.slice(2) : name;
    const field = (isOfA ? COMPARED : FIELDS).find((each) => each.key === key);
    const value = field && valueOf(field, text);
    if (value !== undefined) (isOfA ? ofA : found)[key] = value;
    else problems.push("In the address, " + (field
      ? `${impossible({ ...field, key: name }, text)} The default is used.` : `${name} is not a setting of this page.`));
  }
  if (file !== undefined) {
    if (file === carried.file?.name) return { ...found, file };
    problems.push(`This tab does not have the file ${file}: open it again.`);
  }
  return checked(found);
}

/** The setting of the address, or of A in it, if it is possible; else with the default. */
function checked(found, A = "") {
  if (isShared(found)) return found;
  problems.push(`In the address, ${A}n_kv_head cannot be ${found.n_kv_head} with ${A}n_head ` +
    `${found.n_head}. The default is used.`);
  return { ...found, n_kv_head: null };
}

const asked = readAddress();
/** The opened model, instead of a new one: {name, text, weights}, and what `modelOf` returns. */
export const opened = asked.file === undefined ? null
  : { ...carried.file, ...modelOf(carried.file.text, data) };
export const setting = opened
  ? { ...asked, ...opened.config.model, ...opened.config.train, task: opened.name } : asked;

/** The run to compare with: {setting}, and if it was trained here, {steps, loss, accuracy, map}. */
function keptRun() {
  const other = checked({ ...setting, ...ofA }, "A."), { A } = carried;
  const same = ({ key }) => A.setting[key] === other[key];
  if (A && !opened && A.setting.task === setting.task && COMPARED.every(same)) return A;
  return Object.keys(ofA).length ? { setting: other } : null;
}

export const kept = keptRun();

/** The address of a setting, and of what differs in another one, A. */
export function addressOf(all, A = null) {
  const usual = defaultsOf(all.task), own = defaultsOf(all.task, all.optimizer);
  const common = { ...own, task: "repeat", optimizer: usual.optimizer };
  const differing = (fields, of, than, before = "") =>
    fields.filter(({ key }) => of[key] !== than[key]).map(({ key }) => [before + key, of[key]]);
  return `?${new URLSearchParams([...differing(FIELDS, all, common),
    ...(A ? differing(COMPARED, A.setting, all, "A.") : [])])}`;
}

/** The address of this setting with a change, and of A. Another task or optimizer has its own
 * defaults of the model and its training. */
export function linkTo(A, changes = {}) {
  const { workers, pace } = setting, { task, optimizer } = changes;
  if (task) return addressOf({ ...defaultsOf(task), workers, pace });
  if (opened) return location.search;
  const { learning_rate } = optimizer ? defaultsOf(setting.task, optimizer) : setting;
  const next = { ...setting, learning_rate, ...changes };
  return addressOf(isShared(next) ? next : { ...next, n_kv_head: null }, A);
}

/** What differs between A and this run, B, in words: [of A, of B]. */
export function namesOf(A) {
  const differing = COMPARED.filter(({ key }) => A.setting[key] !== setting[key]);
  return [A.setting, setting].map((of) =>
    differing.map(({ key, label }) => `${label} ${inWords(of[key])}`).join(", ") || "this setting");
}

// -------------------------------------------------------------------- the task, the model
export const SHORTEST = 50; // characters of a text, whose held-out tenth is a sequence
export const isShort = (text) => Array.from(text).length < SHORTEST;
const text = isShort(carried.text ?? "") ? data.stories : carried.text;

function newConfig() {
  const chosen = (section) => Object.fromEntries(
    Object.keys(tasks[setting.task][section]).map((key) => [key, setting[key]]));
  const model = chosen("model");
  if (setting.task === "text") {
    model.block_size = Math.min(64, Math.floor(Array.from(text).length / 10) - 1);
  }
  return { data: tasks[setting.task].data, model, train: chosen("train") };
}

export const config = opened?.config ?? newConfig();
const B = config.model.block_size;

/** The task of an opened model, if its sequences can be made here. */
function taskOf({ vocab, config: { data } }) {
  if (data.source === "text" || !Object.hasOwn(TASKS, data.source)) return null;
  const task = new TASKS[data.source](data, B, usual[data.source]);
  return `${task.vocab}` === `${vocab}` ? task : null;
}

const known = opened ? taskOf(opened)
  : new TASKS[setting.task](setting.task === "text" ? { text } : config.data, B, usual[setting.task]);
const V = (opened ?? known).vocab.length;
/** Without its text, a model is measured on random strings. */
export const task = known ??
  new TASKS.repeat_fixed({ task_kinds: V, task_length: Math.min(32, V, Math.ceil(B / 2)) }, B);
const { dropout, attn_dropout } = config.model;
/** Why the model cannot be trained, or "". */
export const untrainable = !known ? "the file does not hold the text that the model was trained on"
  : dropout || attn_dropout ? "the page trains without dropout" : "";

const { vocab } = opened ?? task, shapes = shapesOf(config.model, V, data.ngram_rows);
export const measure = new Measure(task, config.model, shapes);

function firstSnapshot() {
  const weights = opened ? floatsOf(opened.weights)
    : initialize(config.model, shapes, setting.seed);
  const measured = [...measure.of(weights)].at(-1);
  return { step: opened?.header.state.step ?? 0, header: opened?.text, weights, ...measured };
}

/** The text that is shown first: a word that could be repeated, cut where the next letter can be
 * copied, or the beginning of a sequence, up to a match. */
function opening([tokens]) {
  if (task.opening) return task.opening(tokens);
  const { periods: [low, high] = [] } = task, { word } = data;
  const ids = [...word + word].slice(0, 22).map((letter) => vocab.indexOf(letter));
  if (low <= word.length && word.length <= high && !ids.includes(-1)) return ids;
  const shown = tokens.slice(0, Math.min(32, Math.max(B > 8 ? 0 : B, Math.floor(B * 3 / 4) + 1)));
  const end = task.match(shown).findLastIndex((keys) => keys.length);
  return shown.slice(0, end < 0 ? shown.length : end + 1);
}

/** A text by the model itself. */
function written() {
  const ids = [opened.header.corpus.start_token], settings = { temperature: 0.8, topK: 0, seed: 1337 };
  const drawn = [...generate(measure.engine, ids, Math.min(40, B) - 1, settings)].filter(Boolean);
  return [...ids, ...drawn.map(({ id }) => id)];
}

const first = firstSnapshot(), { n_layer, n_head } = config.model;
const tooFew = setting.task === "repeat" && n_layer === 1;
const tokenizer = opened?.header.tokenizer ?? (task.words
  ? { kind: "word", words: task.words } : { kind: "char", chars: task.vocab.join("") });
Object.assign(data, {
  about: opened ? "" : tooFew ? "with one layer, no induction head can form." : tasks[setting.task].watch,
  periods: (known && task.periods) ?? [],
  run: { name: setting.task, task: null, step: null, val_loss: null, config,
    made: "trained in this page",
    unit: ["char", "byte"].find((kind) => kind === tokenizer.kind) ?? "token",
    parameters: sum(shapes.map(countOf)) },
  shapes, vocab, tokenizer,
  opening: { text: known ? opening(measure.sequences) : written(), head: (n_layer - 1) * n_head,
    color: task.color },
  baselines: task.baselines(measure.sequences), scores: measure.scores,
  measured: `${measure.sequences.length} ${known ? "validation sequences" : "random strings"} of ` +
    `${B} tokens`,
  snapshots: [first],
});
