// The setting of the playground, from the part of the address after ?, and the data of a run that
// begins with it. play.js imports this before the modules that show a run.

import { ACTIVATIONS } from "./engine/kernels.js";
import { Measure } from "./engine/measure.js";
import { sum } from "./engine/numbers.js";
import { countOf, initialize, shapesOf } from "./engine/shapes.js";
import { TASKS } from "./engine/tasks.js";
import { defaultWorkers } from "./engine/trainer.js";

export const script = document.querySelector("script[type=module]").textContent;

const place = document.getElementById("data");
export const described = JSON.parse(place.textContent); // by page/playground.py
const { tasks } = described;

/** What the address can set: `values` to choose from, or a number from `low` to `high`. Those with a
 * label are fields of the form, too. */
export const FIELDS = [
  { key: "task", label: "task", values: Object.keys(tasks) },
  { key: "n_layer", label: "layers", values: [1, 2, 3, 4] },
  { key: "n_head", label: "heads", values: [1, 2, 4, 8] },
  { key: "n_embd", label: "width", values: [16, 32, 48, 64, 96, 128] },
  { key: "positions", label: "positions", values: ["learned", "rotary", "none"] },
  { key: "qk_norm", label: "QK-norm", values: [true, false] },
  { key: "pace", label: "steps a second", values: ["fastest", 20, 5, 1] },
  { key: "n_kv_head", values: [1, 2, 4, 8] },
  { key: "mlp_ratio", values: [0, 1, 2, 4] },
  { key: "window", low: 0, high: 1e9, whole: true },
  { key: "activation", values: ACTIVATIONS },
  { key: "ngrams", values: [1, 2, 3] },
  { key: "optimizer", values: ["muon", "adamw"] },
  { key: "seed", low: 0, high: 2 ** 32 - 1, whole: true },
  { key: "muon_learning_rate", low: 0, high: 1e30 },
  { key: "learning_rate", low: 0, high: 1e30 },
  { key: "weight_decay", low: 0, high: 1e30 },
  { key: "max_steps", low: 1, high: 1e9, whole: true },
  { key: "batch_size", low: 1, high: 4096, whole: true },
  { key: "workers", values: [1, 2, 3, 4] },
];

/** The value of a field from text, or undefined if it is not possible. */
function valueOf({ values, low, high, whole }, text) {
  if (values) return values.find((value) => `${value}` === text);
  const value = text.trim() ? Number(text) : NaN;
  return low <= value && value <= high && (!whole || Number.isInteger(value)) ? value : undefined;
}

const RATES = { muon: 0.01, adamw: 0.003 }; // of AdamW, with Muon and alone

function defaultsOf(task, optimizer = tasks[task].train.optimizer) {
  const { model, train } = tasks[task];
  const other = optimizer === train.optimizer ? {} : { optimizer, learning_rate: RATES[optimizer] };
  return { task, workers: defaultWorkers(), pace: 20, ...model, ...train, ...other };
}

export const problems = []; // of the address, in words

function readAddress() {
  const asked = [...new URLSearchParams(location.search)];
  const { task, optimizer } = Object.fromEntries(asked);
  const found = defaultsOf(Object.hasOwn(tasks, task) ? task : "repeat",
    Object.hasOwn(RATES, optimizer) ? optimizer : undefined);
  for (const [key, text] of asked) {
    const field = FIELDS.find((each) => each.key === key), value = field && valueOf(field, text);
    if (value !== undefined) found[key] = value;
    else if (!field) problems.push(`In the address, ${key} is not a setting of this page.`);
    else {
      const can = field.values?.join(", ") ?? `${field.low} to ${field.high}`;
      problems.push(`In the address, ${key} cannot be ${text}, but ${can}. The default is used.`);
    }
  }
  if (found.n_head % (found.n_kv_head ?? 1)) {
    problems.push(`In the address, n_kv_head cannot be ${found.n_kv_head} with n_head ` +
      `${found.n_head}. The default is used.`);
    found.n_kv_head = null;
  }
  return found;
}

export const setting = readAddress();

/** The address of this setting with a change. Another task or optimizer has its own defaults of the
 * model and its training. */
export function linkTo(changes = {}) {
  const { task = setting.task } = changes, usual = defaultsOf(task);
  const { optimizer = changes.task ? usual.optimizer : setting.optimizer } = changes;
  const own = defaultsOf(task, optimizer);
  const { workers, pace } = setting;
  const all = changes.task ? { ...own, workers, pace } : { ...setting, ...changes,
    learning_rate: changes.optimizer ? own.learning_rate : setting.learning_rate };
  const common = { ...own, task: "repeat", optimizer: usual.optimizer };
  const parts = FIELDS.filter(({ key }) => all[key] !== common[key]).map(({ key }) => [key, all[key]]);
  return `?${new URLSearchParams(parts)}`;
}

// A tab's name outlives a reload, also of a file on the disk.
const PASTED = "pasted text:";
export const keepText = (text) => { window.name = PASTED + text; };
export const pasted = window.name.startsWith(PASTED) ? window.name.slice(PASTED.length) : "";

export const SHORTEST = 50; // characters of a text, whose held-out tenth is a sequence
export const isShort = (text) => Array.from(text).length < SHORTEST;
const text = isShort(pasted) ? script : pasted;

const { task: name } = setting, { about, data } = tasks[name];
const chosen = (section) =>
  Object.fromEntries(Object.keys(tasks[name][section]).map((key) => [key, setting[key]]));
export const config = { data, model: chosen("model"), train: chosen("train") };
if (name === "text") {
  config.model.block_size = Math.min(64, Math.floor(Array.from(text).length / 10) - 1);
}

const B = config.model.block_size;
export const task = new TASKS[name](name === "text" ? { text } : data, B);
const shapes = shapesOf(config.model, task.vocab.length);
export const measure = new Measure(task, config.model, shapes);

/** The text that is shown first: the beginning of a sequence, up to a match. */
function opening([tokens]) {
  const shown = tokens.slice(0, Math.min(32, Math.floor(B * 3 / 4) + 1));
  const end = task.match(shown).findLastIndex((keys) => keys.length);
  return shown.slice(0, end < 0 ? shown.length : end + 1);
}

function firstSnapshot() {
  const weights = initialize(config.model, shapes, setting.seed);
  const measuring = measure.of(weights);
  let result = measuring.next();
  while (!result.done) result = measuring.next();
  return { step: 0, weights, ...result.value };
}

const tooFew = name === "repeat" && setting.n_layer === 1 ? " With one layer, it cannot form." : "";
place.made = {
  live: true, about: about + tooFew, saved: 1, prompted: false, checks: [], reference: [],
  text: null, periods: task.periods ?? [],
  run: { name, task: null, step: 0, val_loss: null, unit: task.words ? "token" : "char", config,
    parameters: sum(shapes.map(countOf)) },
  shapes, vocab: task.vocab,
  tokenizer: task.words ? { kind: "word", words: task.words }
    : { kind: "char", chars: task.vocab.join("") },
  opening: { text: opening(measure.sequences), head: (setting.n_layer - 1) * setting.n_head },
  baselines: task.baselines(measure.sequences), scores: measure.scores,
  measured: `${measure.sequences.length} validation sequences of ${B} tokens`, snapshots: [firstSnapshot()],
};
