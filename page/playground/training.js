// Training in the playground: it alone trains, and adds snapshots.

import { readAddress } from "../address.js";
import { checkpoint } from "../engine/safetensors.js";
import { clamp, indexOfLargest, range } from "../engine/numbers.js";
import { mayGoOn } from "../engine/pass.js";
import { Trainer } from "../engine/trainer.js";
import { highOf } from "../engine/stages.js";
import { measures } from "../measures.js";
import { data } from "../data.js";
import { last, snapshots } from "../run.js";
import { config, measure, opened, script, setting, task } from "./setting.js";
import { change, state } from "../state.js";

const MEMORY = 64e6; // bytes of the weights of all snapshots
const MOST = 100; // snapshots
const AHEAD = 3; // steps that workers have to do while the page draws
const { shapes, run: { parameters } } = data, first = snapshots[0];

let trainer; // once training begins
let running = Promise.resolve(); // the last call of `train`

/** The sequences of a step: the same whenever it is made. */
const batchOf = (step) => task.draw(2 ** 32 * (step + 1) + config.train.seed, config.train.batch_size);

/** Train for a number of steps, at most `pace()` a second, unless the state's `training` ends; resolves
 * to the last snapshot. */
export const train = (count, pace = () => Infinity) =>
  (running = running.then(() => go(count, pace)));

async function go(count, pace) {
  trainer ??= new Trainer(config.model, { ...config.train, ...data.muon }, shapes, setting.workers, script, first);
  const end = trainer.steps + count, sent = [];
  let keeping = null, free = 0; // the promise of a snapshot, and when the next may follow
  change({ training: true, stopped: null });
  for (;;) {
    const began = performance.now(), due = began + 1000 / pace();
    const isFastest = pace() === Infinity, most = isFastest ? AHEAD : 1;
    while (state.training && trainer.next < end && sent.length < most) {
      sent.push(trainer.step(batchOf(trainer.next)));
    }
    if (!sent.length) break;
    const { stopped } = await sent.shift();
    if (stopped) {
      await Promise.all([keeping, ...sent.splice(0)]);
      await keep();
      change({ training: false, stopped });
      break;
    }
    if (performance.now() >= free) keeping ??= keep().finally(() => {
      keeping = null;
      if (isFastest) free = 2 * performance.now() - began; // at most half of the time
    });
    const wait = due - performance.now();
    if (wait > 1 && !document.hidden) {
      await new Promise((resolve) => { setTimeout(resolve, Math.min(wait, 1000)); });
    }
  }
  await keeping;
  if (snapshots[last()].step < trainer.steps) await keep();
  change({ training: false });
  return snapshots[last()];
}

/** Add a snapshot of the weights of now, and show it if the one on show was the last. It replaces
 * one of the same step, whose weights were not finite. */
async function keep() {
  const { step, weights } = await trainer.weights();
  let measured;
  for (measured of measure.of(weights)) await mayGoOn(() => true);
  const shown = snapshots[state.snapshot], follows = state.snapshot === last();
  const end = snapshots[last()].step === step ? last() : snapshots.length;
  snapshots[end] = { step, weights, ...measured };
  thinOut(shown);
  const at = follows ? last() : snapshots.indexOf(shown);
  await change({ newest: step, ...(follows ? headToFollow() : {}),
    ...(follows || at !== state.snapshot ? { snapshot: at } : {}) });
}

/** Whether a head has a high first score at the last snapshot. */
export const isHigh = (head) =>
  measures[0].at(last())[head] >= highOf(measures[0].uniform);

let followed = readAddress().head ?? state.head;

/** The first head with a high first score, as long as it is high, unless the reader selected another. */
function headToFollow() {
  const best = indexOfLargest(measures[0].at(last()));
  if (state.head !== followed || isHigh(followed) || !isHigh(best)) return {};
  followed = best;
  return { head: best };
}

/** Remove snapshots until they fit, but not the one on show, from where they are closest relative to
 * their steps. */
function thinOut(shown) {
  const room = clamp(MEMORY / parameters / 4, 8, MOST);
  while (snapshots.length > room) {
    const gap = (i) => (snapshots[i + 1].step + 20) / (snapshots[i - 1].step + 20);
    const removed = range(last()).slice(1).filter((i) => snapshots[i] !== shown)
      .reduce((a, b) => (gap(b) < gap(a) ? b : a));
    snapshots.splice(removed, 1);
  }
}

/** The bytes of last.safetensors, of a snapshot: with it alone, a folder is a run. A snapshot that was
 * opened keeps its header. */
export function savedRun({ step, weights, lens_loss, header }) {
  const loss = lens_loss.at(-1);
  return checkpoint(header ?? JSON.stringify({
    config, tokenizer: data.tokenizer,
    corpus: opened?.header.corpus ?? { source: config.data.source, start_token: 0 },
    machine: { device: "cpu", processor: "a browser", threads: setting.workers, processes: 1,
      precision: "float32", torch: "" },
    state: { step, last_eval_step: step, val_loss: loss, best_val_loss: loss },
  }), shapes, weights);
}

/** The config file that trains the same in PyTorch. */
export function configFile() {
  return Object.entries(config).map(([section, fields]) => {
    const changed = Object.entries(fields)
      .filter(([key, value]) => value !== data.defaults[section][key]);
    return `${section}: {${changed.map(([key, value]) => `${key}: ${value}`).join(", ")}}\n`;
  }).join("");
}

Object.assign(globalThis.glassgpt, {
  baselines: data.baselines,
  newest: () => snapshots[last()],
  async train(steps) { // at full pace
    const { step, lens_loss, accuracy: [accuracy] } = await train(steps);
    return { step, loss: lens_loss.at(-1), accuracy: Number.isNaN(accuracy) ? null : accuracy };
  },
});
