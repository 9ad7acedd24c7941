// The backward pass: an engine that also computes the gradient of the loss.
//
// The forward pass is the engine's, on a whole sequence at once. The gradients of the residual
// stream flow back through the same parts in the opposite order; each part adds the gradient of its
// weights to `gradients`. `dx` stands for the gradient of the loss with respect to x.

import { CHUNK, Engine } from "./engine.js";
import { activateBack, arena, fours } from "./kernels.js";
import { triangle } from "./numbers.js";

export class Learner extends Engine {
  /** See Engine. */
  constructor(config, shapes) {
    super(config, shapes);
    const { L, B, C, V, hidden } = this;
    // What an engine overwrites in the next layer is kept for the backward pass.
    for (let l = 0; l < L; l++) {
      const name = `blocks.${l}`;
      for (const each of ["up", "active"]) this.place(each + l, B * hidden);
      for (const each of ["attn_norm", "mlp_norm"]) this.place(`${name}.${each} output`, B * C);
      for (const each of ["q", "k"]) this.place(`${name}.attn.${each}_norm input`, B * C);
    }
    for (const name of ["final_norm output", "between"]) this.place(name, B * C);
    for (const name of ["x", "normed", "q", "k", "v", "z", "raw"]) this.place(`d${name}`, B * C);
    this.place("dup", B * hidden);
    this.place("dlogits", B * fours(V));
    this.place("dscores", CHUNK * fours(B));
    this.place("gradients", this.weightCount);
  }

  /** Views of all weights, and of their gradients in the same order. Do not keep them. */
  get weights() { return this.view(this.shelf.start); }
  get gradients() { return this.view(this.at.gradients); }
  view(start) { return this.memory.subarray(start, start + this.weightCount); }

  // --------------------------------------------------------------------- the forward pass
  norm(name, x, rows) {
    this.at.normed = this.at[`${name} output`];
    super.norm(name, x, rows);
  }

  block(l, from, to) {
    for (const name of ["up", "active"]) this.at[name] = this.at[name + l];
    super.block(l, from, to);
  }

  normAndRotate(name, y, from, to, heads) {
    this.memory.copyWithin(this.at[`${name} input`], y, y + (to - from) * heads * this.D);
    super.normAndRotate(name, y, from, to, heads);
  }

  /** Compute the loss of sequences and the gradient of all weights.
   *
   * @param batch sequences of T + 1 tokens, of which the first T are read
   * @param count number of tokens that all sequences predict, over which the loss is a mean; more
   *     than those of `batch` if others compute the rest
   * @returns the sum of the cross-entropies, in nats, divided by `count` */
  learn(batch, count) {
    const { at, L, C } = this;
    let loss = 0;
    this.gradients.fill(0);
    for (const tokens of batch) {
      const T = tokens.length - 1;
      this.set(tokens.slice(0, T));
      this.valid.fill(0);
      this.embed(0, T);
      for (let l = 0; l < L; l++) this.block(l, 0, T);
      this.unembed(at[`x${L}`], at.logits, T);
      loss += this.lossBack(tokens, 1 / count);
      this.unembedBack(T);
      for (let l = L - 1; l >= 0; l--) this.blockBack(l, T);
      this.embedBack(T);
    }
    return loss / count;
  }

  // -------------------------------------------------------------------- the backward pass
  /** Write the gradient of the logits, and return the loss of the next tokens. */
  lossBack(tokens, scale) {
    const { memory, at: { logits, dlogits }, V } = this;
    const T = tokens.length - 1, width = fours(V);
    for (let t = 0, row = dlogits; t < T; t++, row += width) {
      memory.copyWithin(row, logits + t * V, logits + (t + 1) * V);
      memory.fill(-Infinity, row + V, row + width);
    }
    arena.softmaxRows(dlogits, T, width);
    let loss = 0;
    for (let t = 0, row = dlogits; t < T; t++, row += width) {
      let top = 0; // probabilities of unlikely tokens may be zero, their logits tell more
      for (let v = 1; v < V; v++) if (memory[row + v] > memory[row + top]) top = v;
      const norm = memory[logits + t * V + top] - Math.log(memory[row + top]);
      loss += norm - memory[logits + t * V + tokens[t + 1]];
      for (let v = 0; v < V; v++) memory[row + v] *= scale;
      memory[row + tokens[t + 1]] -= scale;
    }
    return loss;
  }

  unembedBack(T) {
    const { memory, at, C, V, L } = this;
    memory.fill(0, at.dx, at.dx + T * C);
    this.linearBack(this.unembedding, at["final_norm output"], at.dlogits, at.dnormed, T, C, V);
    this.normBack("final_norm", at[`x${L}`], at.dnormed, at.dx, T, C);
  }

  blockBack(l, T) {
    const { memory, at, config, C, D, H, G, hidden } = this;
    const name = `blocks.${l}`, x = at[`x${l}`], { between, dx, dup, dnormed, dz, draw } = at;

    if (hidden) { // the MLP, which reads the stream between attention and itself
      memory.copyWithin(between, x, x + T * C);
      this.add(between, at[`attn${l}`], T * C);
      this.linearBack(`${name}.mlp.down`, at[`active${l}`], dx, dup, T, hidden, C);
      activateBack(config.activation, memory, at[`up${l}`], dup, T * hidden);
      this.linearBack(`${name}.mlp.up`, at[`${name}.mlp_norm output`], dup, dnormed, T, C, hidden);
      this.normBack(`${name}.mlp_norm`, between, dnormed, dx, T, C);
    }

    // Attention.
    this.linearBack(`${name}.attn.out`, at[`z${l}`], dx, dz, T, C, C);
    this.attendBack(l, T);
    for (const [kind, letter, heads] of [["query", "q", H], ["key", "k", G], ["value", "v", G]]) {
      let dy = at[`d${letter}`];
      this.repeatBack(dy, T, heads);
      if (letter !== "v" && config.positions === "rotary") this.rotate(dy, 0, T, heads, -1);
      if (letter !== "v" && config.qk_norm) {
        const norm = `${name}.attn.${letter}_norm`;
        memory.fill(0, draw, draw + T * C);
        this.normBack(norm, at[`${norm} input`], dy, draw, T * heads, D);
        dy = draw;
      }
      const input = at[`${name}.attn_norm output`];
      this.linearBack(`${name}.attn.${kind}`, input, dy, dnormed, T, C, heads * D, letter !== "q");
    }
    this.normBack(`${name}.attn_norm`, x, dnormed, dx, T, C);
  }

  /** Add up the gradients of keys or values that were repeated, in place. */
  repeatBack(dy, rows, heads) {
    const { memory, H, D } = this;
    if (heads === H) return;
    for (let i = 0; i < rows * H; i++) {
      const to = dy + Math.floor(i / H) * heads * D + this.shared(i % H), from = dy + i * D;
      if (i % (H / heads)) this.add(to, from, D);
      else memory.copyWithin(to, from, from + D);
    }
  }

  /** From the gradient of what heads write to those of queries, keys and values. */
  attendBack(l, T) {
    const { memory, at, C, D, H } = this;
    const { [`q${l}`]: q, [`k${l}`]: k, [`v${l}`]: v, scores, dscores, dq, dk, dv, dz } = at;
    for (const each of [dq, dk, dv]) memory.fill(0, each, each + T * C);
    const scale = 1 / Math.sqrt(D);
    for (let h = 0; h < H; h++) {
      const d = h * D;
      for (let first = 0; first < T; first += CHUNK) {
        const keys = Math.min(first + CHUNK, T), rows = keys - first, width = fours(keys);
        const [some, dsome] = [q + first * C + d, dz + first * C + d];
        arena.multiply(dsome, v + d, dscores, rows, D, keys, C, C, width);
        for (let t = first, at = 0; t < keys; t++, at += width) {
          const weights = this.at[`weights${l}`] + h * this.pairs + triangle(t);
          memory.copyWithin(scores + at, weights, weights + t + 1);
          memory.fill(0, scores + at + t + 1, scores + at + keys);
          let mean = 0;
          for (let s = at; s <= at + t; s++) mean += memory[scores + s] * memory[dscores + s];
          for (let s = at; s < at + keys; s++) {
            memory[dscores + s] = memory[scores + s] * (memory[dscores + s] - mean) * scale;
          }
        }
        arena.addTransposed(scores, dsome, dv + d, keys, rows, D, C, width, C);
        arena.addProduct(dscores, k + d, dq + first * C + d, rows, keys, D, C, width, C);
        arena.addTransposed(dscores, some, dk + d, keys, rows, D, C, width, C);
      }
    }
  }

  embedBack(T) {
    const { at: { dx, gradients }, offsets, C } = this;
    for (let t = 0; t < T; t++) {
      for (const [name, row] of this.embeddings(t)) {
        this.add(gradients + offsets[`${name}.weight`] + row * C, dx + t * C, C);
      }
    }
  }

  /** Of y = x W^T + b, add the gradients of W and b. Set dx to dy W, or add that if others read x. */
  linearBack(name, x, dy, dx, rows, K, N, isAdded = false) {
    const { memory, at, offsets } = this;
    const weight = `${name}.weight`, bias = offsets[`${name}.bias`];
    const stride = dy === at.dlogits ? fours(N) : N;
    if (!isAdded) memory.fill(0, dx, dx + rows * K);
    arena.addProduct(dy, at[weight], dx, rows, N, K, K, stride);
    arena.addTransposed(dy, x, at.gradients + offsets[weight], N, rows, K, K, stride);
    if (bias === undefined) return;
    for (let r = 0; r < rows; r++) this.add(at.gradients + bias, dy + r * stride, N);
  }

  /** Of a norm, add the gradients of its weights, and that of its input to dx. With n the
   * normalized input and g = w dy, the latter is scale * (g - mean(g) - n mean(g n)). */
  normBack(name, x, dy, dx, rows, width) {
    const { memory, at, offsets } = this;
    const weight = at[`${name}.weight`], dweight = at.gradients + offsets[`${name}.weight`];
    const bias = offsets[`${name}.bias`];
    if (bias !== undefined) {
      for (let r = 0; r < rows; r++) this.add(at.gradients + bias, dy + r * width, width);
    }
    for (let r = 0; r < rows; r++, x += width, dy += width, dx += width) {
      const { mean, scale } = this.moments(x, width);
      let [sum, product] = [0, 0];
      for (let c = 0; c < width; c++) {
        const n = (memory[x + c] - mean) * scale, g = memory[dy + c] * memory[weight + c];
        memory[dweight + c] += memory[dy + c] * n;
        sum += g;
        product += g * n;
      }
      sum /= width;
      product *= scale / width;
      for (let c = 0; c < width; c++) {
        const g = memory[dy + c] * memory[weight + c];
        memory[dx + c] += scale * (g - sum - (memory[x + c] - mean) * product);
      }
    }
  }
}
