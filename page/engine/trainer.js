// Training in the page: a replica of the model in each worker, and the steps that all make.

import { range } from "./numbers.js";
import "./worker.js";

export const defaultWorkers = () => Math.min(4, Math.max(1, navigator.hardwareConcurrency - 1));

export class Trainer {
  /** @param config the fields of configs/config.py
   * @param train the fields of configs/config.py, and the constants of Muon
   * @param shapes of the weights
   * @param count number of workers
   * @param script text of the page's script, whose first import is this module, so that the script
   *     begins with what a worker needs
   * @param start {step, weights} to go on from */
  constructor(config, train, shapes, count, script, { step, weights }) {
    if (config.dropout || config.attn_dropout) throw new Error("the page trains without dropout");
    this.train = train;
    this.first = this.steps = this.next = step; // steps that are made; the next one to send
    const end = script.indexOf("// The end of worker.js");
    const url = URL.createObjectURL(new Blob([script.slice(0, end)], { type: "text/javascript" }));
    this.workers = range(count).map(() => new Worker(url));
    this.due = range(count).map(() => []); // of each worker, the calls that it has not answered
    this.workers.forEach((worker, rank) => {
      worker.onmessage = ({ data }) => this.due[rank].shift().resolve(data);
      worker.onerror = ({ message }) => {
        this.error = new Error(message || "a worker does not start");
        for (const { reject } of this.due.flat()) reject(this.error);
      };
    });
    const ports = range(count).map(() => new Array(count).fill(null)); // between two replicas
    for (const a of range(count)) {
      for (const b of range(a)) {
        ({ port1: ports[a][b], port2: ports[b][a] } = new MessageChannel());
      }
    }
    const revoke = () => URL.revokeObjectURL(url);
    this.ask((rank) => [["start", config, shapes, weights, rank, ports[rank]],
      ports[rank].filter(Boolean)]).then(revoke, revoke);
  }

  /** Send each worker a message, and return the answers. Workers answer in turn. */
  ask(messageFor) {
    return Promise.all(this.workers.map((worker, rank) => new Promise((resolve, reject) => {
      if (this.error) return reject(this.error);
      this.due[rank].push({ resolve, reject });
      worker.postMessage(...messageFor(rank));
    })));
  }

  /** Make a step with a batch, sequences of T + 1 tokens: {step, loss, gradNorm}. If one of
   * these is not finite, the result has a line `stopped` that says so, and the step is not counted:
   * the weights are the last ones whose loss was finite. Steps that were sent before such a result
   * came are not made. */
  async step(batch) {
    const { train, workers: { length: count } } = this, number = this.next++;
    const tokens = batch.length * (batch[0].length - 1);
    const cut = (rank) => Math.round((rank * batch.length) / count);
    const [{ loss, gradNorm }] = await this.ask((rank) =>
      [["step", batch.slice(cut(rank), cut(rank + 1)), tokens, number - this.first, train]]);
    if (loss === undefined) return {};
    const step = number + 1;
    if (!Number.isFinite(loss + gradNorm)) {
      this.next = this.steps;
      const stopped = `at step ${step}: loss ${loss}, gradient norm ${gradNorm}`;
      return { step, loss, gradNorm, stopped };
    }
    return { step: (this.steps = step), loss, gradNorm };
  }

  /** Return {step, weights} of a replica after all calls so far, in the order of `shapes`. */
  async weights(rank = 0) {
    const { step, weights } = (await this.ask(() => [["weights"]]))[rank];
    return { step: this.first + step, weights };
  }
}
