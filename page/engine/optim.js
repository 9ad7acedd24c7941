// The optimizers and the clipping of training/optim.py and training/step.py. Learning rates rise in
// the warmup, and then stay, because a page may train on.

import { arena } from "./kernels.js";
import { countOf } from "./shapes.js";

const BETA1 = 0.9; // of AdamW: the exponential decay of the first moment

export class Optimizer {
  /** @param learner whose weights are updated
   * @param shapes of its weights */
  constructor(learner, shapes) {
    Object.assign(this, { learner, shapes });
    // Muon's momentum or AdamW's first moment; its second moment; the weights before a step
    for (const name of ["first", "second", "kept"]) this[name] = arena.reserve(learner.weightCount);
    const { C, hidden } = learner;
    this.scratch = [0, 1, 2, 3].map(() => arena.reserve(C * Math.max(C, hidden)));
    this.steps = 0; // since the start, for the bias of the moments
  }

  /** Update the weights, and return the norm of the gradient before clipping. `config` is `train` of
   * Trainer. If the loss or the norm is not finite, restore the last weights whose loss was. */
  step(loss, config) {
    const { memory, weights, gradients, shelf: { start }, at } = this.learner;
    let squares = 0;
    for (const each of gradients) squares += each * each;
    const norm = Math.sqrt(squares);
    if (!Number.isFinite(loss + norm)) {
      if (this.steps) weights.set(this.learner.view(this.kept));
      return norm;
    }
    memory.set(weights, this.kept);
    const clip = config.grad_clip ? Math.min(1, config.grad_clip / (norm + 1e-6)) : 1;
    if (clip < 1) for (let i = 0; i < gradients.length; i++) gradients[i] *= clip;
    const scale = Math.min(1, ++this.steps / config.warmup_steps);
    let offset = 0;
    for (const tensor of this.shapes) {
      const [name, shape] = tensor, count = countOf(tensor);
      const [weight, gradient] = [start + offset, at.gradients + offset];
      if (config.optimizer === "muon" && isHidden(tensor)) {
        this.muon(weight, gradient, this.first + offset, ...shape,
          scale * config.muon_learning_rate, config);
      } else {
        const decay = shape.length > 1 ? config.weight_decay : 0;
        const own = name.startsWith("ngram") ? config.ngram_decay : null;
        this.adamw(weight, gradient, offset, count,
          scale * config.learning_rate, own ?? decay, config.beta2);
      }
      offset += count;
    }
    return norm;
  }

  /** AdamW (Loshchilov & Hutter 2019). */
  adamw(weight, gradient, offset, count, rate, decay, beta2) {
    const { learner: { memory }, steps } = this;
    const [m, v] = [this.first + offset, this.second + offset];
    const [bias1, bias2] = [1 - BETA1 ** steps, 1 - beta2 ** steps];
    for (let i = 0; i < count; i++) {
      const g = memory[gradient + i];
      const first = memory[m + i] += (1 - BETA1) * (g - memory[m + i]);
      const second = memory[v + i] += (1 - beta2) * (g * g - memory[v + i]);
      memory[weight + i] = memory[weight + i] * (1 - rate * decay) -
        rate / bias1 * first / (Math.sqrt(second / bias2) + 1e-8);
    }
  }

  /** Muon (Jordan et al. 2024): momentum SGD whose updates have singular values near 1. */
  muon(weight, gradient, average, rows, columns, rate, config) {
    const { learner: { memory } } = this, count = rows * columns;
    const { momentum, newton_schulz, weight_decay: decay } = config;
    let squares = 0;
    for (let i = 0; i < count; i++) {
      const g = memory[gradient + i];
      const mean = memory[average + i] += (1 - momentum) * (g - memory[average + i]);
      const update = memory[gradient + i] = g + momentum * (mean - g); // Nesterov momentum
      squares += update * update;
    }
    const X = this.orthogonalize(gradient, rows, columns, Math.sqrt(squares) + 1e-7, newton_schulz);
    const scaled = rate * Math.sqrt(Math.max(1, rows / columns));
    for (let i = 0; i < count; i++) {
      memory[weight + i] = memory[weight + i] * (1 - rate * decay) - scaled * memory[X + i];
    }
  }

  /** The Newton-Schulz iteration on a matrix divided by its norm; return where the result is. */
  orthogonalize(matrix, rows, columns, norm, coefficients) {
    const { learner: { memory } } = this, count = rows * columns;
    const side = Math.min(rows, columns), tall = rows > columns;
    let [X, Y, A, B] = this.scratch;
    for (let i = 0; i < count; i++) memory[X + i] = memory[matrix + i] / norm;
    for (const [a, b, c] of coefficients) {
      // X becomes a X + (b A + c A^2) X with A = X X^T. For a tall X, a X + X (b A + c A^2) with
      // A = X^T X is the same, and smaller.
      if (tall) {
        memory.fill(0, A, A + side * side);
        arena.addTransposed(X, X, A, side, rows, side);
      } else arena.multiply(X, X, A, side, columns, side);
      arena.multiply(A, A, B, side, side, side); // A is symmetric
      for (let i = 0; i < side * side; i++) memory[B + i] = b * memory[A + i] + c * memory[B + i];
      for (let i = 0; i < count; i++) memory[Y + i] = a * memory[X + i];
      const [left, right] = tall ? [X, B] : [B, X];
      arena.addProduct(left, right, Y, rows, side, columns);
      [X, Y] = [Y, X];
    }
    return X;
  }
}

/** Whether a weight is a matrix inside a block. */
const isHidden = ([name, shape]) => name.startsWith("blocks.") && shape.length === 2;
