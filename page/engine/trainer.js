// Training in the page: a replica of the model in each worker, and the steps that all make.

import { range } from "./numbers.js";
import { initialize, shapesOf } from "./shapes.js";
import "./worker.js";

export const defaultWorkers = () => Math.min(4, Math.max(1, navigator.hardwareConcurrency - 1));

export class Trainer {
  /** @param config the fields of model/config.py
   * @param train the fields of training/config.py; `this.train` may be changed between steps
   * @param count number of workers
   * @param script text of the page's script, whose first import is this module, so that the script
   *     begins with what a worker needs */
  constructor(config, train, vocabSize, count, script) {
    const missing = config.dropout || config.attn_dropout ? "dropout"
      : train.multi_token ? "multi-token prediction" : "";
    if (missing) throw new Error(`the page trains without ${missing}`);
    this.train = { ...train };
    this.shapes = shapesOf(config, vocabSize);
    this.steps = 0;
    this.turn = Promise.resolve(); // of the last call: calls follow each other
    const end = script.indexOf("// The end of worker.js");
    const url = URL.createObjectURL(new Blob([script.slice(0, end)], { type: "text/javascript" }));
    this.workers = range(count).map(() => new Worker(url));
    this.failed = new Promise((_, reject) => {
      for (const worker of this.workers) {
        worker.onerror = ({ message }) => reject(new Error(message || "a worker does not start"));
      }
    });
    this.failed.catch(() => {}); // every call will fail
    const weights = initialize(config, this.shapes, this.train.seed);
    const ports = range(count).map(() => new Array(count).fill(null)); // between two replicas
    for (const a of range(count)) {
      for (const b of range(a)) {
        ({ port1: ports[a][b], port2: ports[b][a] } = new MessageChannel());
      }
    }
    const revoke = () => URL.revokeObjectURL(url);
    this.call(() => this.ask((rank) => [["start", config, this.shapes, weights, rank, ports[rank]],
      ports[rank].filter(Boolean)])).then(revoke, revoke);
  }

  /** Do something after all previous calls; their failure is its failure. */
  call(action) { return (this.turn = this.turn.then(action)); }

  /** Send each worker a message, and return the answers. */
  ask(messageFor) {
    return Promise.race([this.failed, Promise.all(this.workers.map((worker, rank) =>
      new Promise((resolve) => {
        worker.onmessage = ({ data }) => resolve(data);
        worker.postMessage(...messageFor(rank));
      })))]);
  }

  /** Make a step with a batch, sequences of T + 1 tokens: {step, loss, gradNorm}. If one of
   * these is not finite, the result has a line `stopped` that says so, and the step is not counted:
   * the weights are the last ones whose loss was finite. */
  step(batch) {
    return this.call(async () => {
      const { steps, train, workers: { length: count } } = this;
      const tokens = batch.length * (batch[0].length - 1);
      const cut = (rank) => Math.round((rank * batch.length) / count);
      const [{ loss, gradNorm }] = await this.ask((rank) =>
        [["step", batch.slice(cut(rank), cut(rank + 1)), tokens, steps, train]]);
      const step = steps + 1;
      if (!Number.isFinite(loss + gradNorm)) {
        const stopped = `at step ${step}: loss ${loss}, gradient norm ${gradNorm}`;
        return { step, loss, gradNorm, stopped };
      }
      return { step: (this.steps = step), loss, gradNorm };
    });
  }

  /** Return the weights of a replica, in the order of `shapes`. */
  weights(rank = 0) {
    return this.call(async () => (await this.ask(() => [["weights"]]))[rank]);
  }

  /** Replace the weights of all replicas. */
  load(weights) { return this.call(() => this.ask(() => [["load", weights]])); }

  /** End the workers. */
  close() { for (const worker of this.workers) worker.terminate(); }
}
