// The setting of the playground, from the part of the address after ?, and the data of a run that
// begins with it. play.js imports this before the modules that show a run.

import { ACTIVATIONS } from "./engine/kernels.js";
import { Measure } from "./engine/measure.js";
import { initialize, shapesOf } from "./engine/shapes.js";
import { TASKS } from "./engine/tasks.js";
import { defaultWorkers } from "./engine/trainer.js";

export const script = document.querySelector("script[type=module]").textContent;

const COMMON = {
  n_layer: 2, n_head: 2, n_embd: 64, positions: "rotary", qk_norm: true, activation: "relu2",
  ngrams: 1, block_size: 64, optimizer: "muon", muon_learning_rate: 0.012, learning_rate: 0.01,
  weight_decay: 0.1, beta2: 0.99, batch_size: 32, max_steps: 300, seed: 1337,
  workers: defaultWorkers(),
};
// What each task has instead: see configs/tasks.
const OF_TASK = {
  repeat: { n_embd: 32, block_size: 32, max_steps: 200 },
  sink: { n_layer: 1, n_head: 1, positions: "learned", qk_norm: false, optimizer: "adamw",
    learning_rate: 0.003, max_steps: 600 },
  markov: { n_head: 1, positions: "learned", block_size: 100, optimizer: "adamw",
    learning_rate: 5e-4, max_steps: 400 },
  modular: { n_layer: 1, n_head: 4, n_embd: 96, positions: "learned", block_size: 4,
    weight_decay: 1, beta2: 0.98, batch_size: 256, max_steps: 500 },
  flipflop: { muon_learning_rate: 0.006, learning_rate: 0.003, max_steps: 200 },
  brackets: { n_head: 4, positions: "learned", max_steps: 500 },
  addition: { n_head: 4, max_steps: 500, seed: 2 },
  recall: { n_layer: 1, ngrams: 2, block_size: 63, max_steps: 200 },
  text: { n_head: 4, max_steps: 600 },
};
// The same in every setting, and as in PyTorch without a flag.
export const DATA = {
  task_kinds: null, task_length: null, task_held_out: 0.1, task_ignored: 0.5, task_order: "highest",
};
export const FIXED = {
  tie_embeddings: false, zero_init: true, bias: false, head_bias: false, dropout: 0, attn_dropout: 0,
};
const DATA_OF_TASK = {
  repeat: { repeat_vocab: 32, repeat_min_period: 4, repeat_max_period: 16 },
  modular: { task_held_out: 0.7 },
  addition: { task_length: 2 },
};
const ABOUT = {
  repeat: "The text is a random string, repeated. To predict the second copy, a head in layer 1 " +
    "finds the previous occurrence of a token and attends to the token after it, an induction " +
    "head: its map is a stripe. It needs a previous-token head in layer 0: ablate that, and the " +
    "stripe breaks.",
  sink: "A Markov chain of letters, where a digit repeats the token before it. The only head copies " +
    "that token at digits; elsewhere it has nothing to do, and attends to the first token: a sink.",
  markov: "Markov chains, each with its own rule, to be found from the context: the model first " +
    "counts tokens, then suddenly pairs of tokens. Watch the loss pass both baselines.",
  modular: "Sums modulo 97, most of them held out. The model memorizes the sums that it sees, and " +
    "later, suddenly, solves the others: grokking. Watch the gap between the two accuracies.",
  flipflop: "Bits that are written, read and ignored. After r comes the bit of the last write, at " +
    "any distance: a head learns to find it.",
  brackets: "Brackets that close in the right order. A head learns to find the innermost open one.",
  addition: "Sums of two-digit numbers, some of them held out. After a plateau, whose length depends " +
    "on the seed, heads find the digits to add, and the accuracy jumps.",
  recall: "Keys, each followed by its value, which is constant within a sequence. A head finds the " +
    "same key earlier, and attends to its value.",
  text: "Characters of a text. The last tenth is held out.",
};

/** What can be set: `values` to choose from, or a number from `low` to `high`. A model with another
 * size is a new one; what is `live` can be changed while it trains. */
export const FIELDS = [
  { key: "task", label: "task", values: Object.keys(TASKS) },
  { key: "n_layer", label: "layers", values: [1, 2, 3, 4] },
  { key: "n_head", label: "heads", values: [1, 2, 4, 8] },
  { key: "n_embd", label: "width", values: [16, 32, 48, 64, 96, 128] },
  { key: "positions", label: "positions", values: ["learned", "rotary", "none"] },
  { key: "qk_norm", label: "QK-norm", values: [true, false] },
  { key: "activation", label: "activation", values: Object.keys(ACTIVATIONS) },
  { key: "ngrams", label: "n-grams", values: [1, 2, 3] },
  { key: "optimizer", label: "optimizer", values: ["muon", "adamw"] },
  { key: "seed", label: "seed", low: 0, high: 2 ** 32 - 1, whole: true },
  { key: "muon_learning_rate", label: "rate of Muon", low: 0, high: 1e30, live: true },
  { key: "learning_rate", label: "rate of AdamW", low: 0, high: 1e30, live: true },
  { key: "weight_decay", label: "weight decay", low: 0, high: 1e30, live: true },
  { key: "max_steps", label: "steps", low: 1, high: 1e9, whole: true, live: true },
  { key: "batch_size", label: "sequences a step", low: 1, high: 4096, whole: true },
  { key: "workers", label: "workers", values: [1, 2, 3, 4] },
];

/** The value of a field from text, or undefined if it is not possible. */
export function valueOf({ values, low, high, whole }, text) {
  if (values) return values.find((value) => `${value}` === text);
  const value = text.trim() ? Number(text) : NaN;
  return low <= value && value <= high && (!whole || Number.isInteger(value)) ? value : undefined;
}

const RATES = { muon: 0.01, adamw: 0.003 }; // of AdamW, with Muon and alone

function defaultsOf(task, optimizer) {
  const all = { task, ...COMMON, ...OF_TASK[task] };
  return [all.optimizer, undefined].includes(optimizer) ? all : { ...all, optimizer, learning_rate: RATES[optimizer] };
}

export const problems = []; // of the address and the pasted text, in words

function readAddress() {
  const asked = [...new URLSearchParams(location.search)];
  const given = Object.fromEntries(asked), task = Object.hasOwn(TASKS, given.task) ? given.task : "repeat";
  const { optimizer } = defaultsOf(task);
  const found = defaultsOf(task, Object.hasOwn(RATES, given.optimizer) ? given.optimizer : optimizer);
  for (const [key, text] of asked) {
    const field = FIELDS.find((each) => each.key === key), value = field && valueOf(field, text);
    if (value !== undefined) found[key] = value;
    else if (!field) problems.push(`In the address, ${key} is not a setting of this page.`);
    else {
      const can = field.values?.join(", ") ?? `${field.low} to ${field.high}`;
      problems.push(`In the address, ${key} cannot be ${text}, but ${can}. The default is used.`);
    }
  }
  return found;
}

export const setting = readAddress();

/** The address of this setting with a change. Another task or optimizer has its own defaults. */
export function linkTo(changes = {}) {
  const { task = setting.task } = changes, usual = defaultsOf(task);
  const { optimizer = changes.task ? usual.optimizer : setting.optimizer } = changes;
  const own = defaultsOf(task, optimizer);
  const all = changes.task ? own : { ...setting, ...changes,
    learning_rate: changes.optimizer ? own.learning_rate : setting.learning_rate };
  const common = { ...own, task: "repeat", optimizer: usual.optimizer };
  const parts = FIELDS.filter(({ key }) => all[key] !== common[key]).map(({ key }) => [key, all[key]]);
  return `?${new URLSearchParams(parts)}`;
}

// A tab's name outlives a reload, also of a file on the disk.
const PASTED = "pasted text:";
export const keepText = (text) => { window.name = PASTED + text; };
export const pasted = window.name.startsWith(PASTED) ? window.name.slice(PASTED.length) : "";

const SHORTEST = 50; // a text, whose held-out tenth is a sequence
const isShort = Array.from(pasted).length < SHORTEST;
if (isShort && pasted && setting.task === "text") {
  problems.push(`The text needs ${SHORTEST} characters or more. Until then the model reads this ` +
    "page's script.");
}
const text = isShort ? script : pasted;

const { task: name, workers: _, ...chosen } = setting;
if (name === "text") chosen.block_size = Math.min(64, Math.floor(Array.from(text).length / 10) - 1);
const TRAIN = ["optimizer", "muon_learning_rate", "learning_rate", "weight_decay", "beta2",
  "batch_size", "max_steps", "seed"];
const pick = (keys) => Object.fromEntries(keys.map((key) => [key, chosen[key]]));
export const config = {
  data: { source: name === "text" ? "pasted.txt" : name, ...DATA, ...DATA_OF_TASK[name] },
  model: { ...pick(Object.keys(chosen).filter((key) => !TRAIN.includes(key))), ...FIXED },
  train: { ...pick(TRAIN), minutes: 0, warmup_steps: 10, schedule: "constant" },
};

const B = config.model.block_size;
export const task = new TASKS[name](name === "text" ? { text } : config.data, B);
const shapes = shapesOf(config.model, task.chars.length);
const parameters = shapes.reduce((sum, [, shape]) => sum + shape.reduce((a, b) => a * b, 1), 0);
export const measure = new Measure(task, config.model, shapes);

/** The text that is shown first: the beginning of a sequence, up to a match. */
function opening([tokens]) {
  const shown = tokens.slice(0, Math.min(32, Math.floor(B * 3 / 4) + 1));
  const end = task.match(shown).findLastIndex((keys) => keys.length);
  return shown.slice(0, end < 0 ? shown.length : end + 1);
}

function firstSnapshot() {
  const weights = initialize(config.model, shapes, chosen.seed, new Float32Array(parameters));
  const measuring = measure.of(weights);
  let result = measuring.next();
  while (!result.done) result = measuring.next();
  return { step: 0, weights, ...result.value };
}

document.getElementById("data").made = {
  live: true, about: ABOUT[name], saved: 1, prompted: false, checks: [], reference: [], text: null,
  run: { name, task: null, step: 0, val_loss: null, unit: "char", parameters, config },
  shapes, vocab: task.chars, tokenizer: { kind: "char", chars: task.chars.join("") },
  opening: { text: opening(measure.sequences), head: (chosen.n_layer - 1) * chosen.n_head },
  baselines: task.baselines(measure.sequences), scores: measure.scores,
  sequences: measure.sequences.length, snapshots: [firstSnapshot()],
};
