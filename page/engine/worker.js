// A replica of the model that trains in a worker, on its part of each batch.
//
// A page from disk shares no memory with its workers. Each replica has its own weights, sends its
// gradient to the others, adds all gradients in the same order, and makes the same step. So the
// replicas stay bitwise identical. In the page's script, what a worker needs ends here.

import { Learner } from "./backward.js";
import { Optimizer } from "./optim.js";

class Replica {
  constructor(config, shapes, weights, rank, ports) {
    this.learner = new Learner(config, shapes);
    this.optimizer = new Optimizer(this.learner, shapes);
    this.learner.load(weights, (room) => room.set(weights));
    Object.assign(this, { rank, ports, inbox: [] }); // a port to each other replica, by rank
    ports.forEach((port, from) => {
      if (port) port.onmessage = ({ data }) => {
        this.inbox[from] = data;
        this.arrived?.();
      };
    });
  }

  weights() { return { step: this.optimizer.steps, weights: this.learner.weights.slice() }; }

  /** Make step number `step`, if it is the next one. */
  async step(batch, count, step, train) {
    if (step !== this.optimizer.steps) return {};
    const loss = await this.sum(this.learner.learn(batch, count));
    return { loss, gradNorm: this.optimizer.step(loss, train) };
  }

  /** Replace the gradient by the sum over the replicas, and return the sum of their losses. */
  async sum(loss) {
    const { inbox, ports, rank, learner } = this;
    if (ports.length < 2) return loss;
    inbox[rank] = { loss, gradients: learner.gradients.slice() };
    for (const port of ports) port?.postMessage(inbox[rank]);
    while (ports.some((_, from) => !inbox[from])) {
      await new Promise((resolve) => { this.arrived = resolve; });
    }
    const [first, ...others] = inbox.splice(0), { gradients } = learner;
    gradients.set(first.gradients);
    for (const other of others) {
      for (let i = 0; i < gradients.length; i++) gradients[i] += other.gradients[i];
    }
    return others.reduce((sum, other) => sum + other.loss, first.loss);
  }
}

if (typeof WorkerGlobalScope !== "undefined") {
  let replica, turn = Promise.resolve();
  const answer = async ([method, ...args]) => {
    if (method === "start") replica = new Replica(...args);
    postMessage(await replica[method]?.(...args));
  };
  onmessage = ({ data }) => {
    turn = turn.then(() => answer(data)).catch(reportError); // which the page hears
  };
}
