// The circuit of a goal: a logit, or the score of a query with a key. With fixed attention weights,
// normalization factors and activation gates, the model is linear: a goal is the sum of what nodes
// (embeddings, heads, neurons of the MLPs, each at a position) add to it, and what a node adds is
// again a sum over the nodes below it.
//
// A node is {rank, index, position, value} and reads what nodes of lower rank write: rank -1 are
// embeddings, 2l the heads of layer l, 2l + 1 its neurons, 2L the logit. `value` is what it adds to
// the goal, over all paths.

import { product } from "./kernels.js";
import { range, sum, triangle } from "./numbers.js";

/** A token's logit, perhaps minus another's, as what a circuit traces. */
export function logitGoal(engine, position, plus, minus) {
  const { direction, scale, bias } = engine.toLogit(position, plus, minus);
  const logit = ({ memory, at, V }, token) => memory[at.logits + position * V + token];
  const now = (of) => logit(of, plus) - (minus === null ? 0 : logit(of, minus));
  return { rank: 2 * engine.L, position, now, value: now(engine), direction, bias,
    times: { [position]: scale } };
}

/** The score of query q with key k in a head, the query held fixed: it is linear in the key. */
export function scoreGoal(engine, l, h, q, k) {
  const { memory, at, C, D, config } = engine, name = `blocks.${l}.attn`;
  const row = ({ memory, at }, letter, t) =>
    Float64Array.from({ length: D }, (_, i) => memory[at[letter + l] + t * C + h * D + i]);
  const now = (of) => product(row(of, "q", q), row(of, "k", k)) / Math.sqrt(D);
  const x = at[`x${l}`] + k * C;
  let direction = row(engine, "q", q).map((each) => each / Math.sqrt(D));
  if (config.positions === "rotary") { // as seen before the key's rotation
    memory.set(direction, at.up);
    engine.rotateOne(at.up, k, -1);
    direction = Float64Array.from(memory.subarray(at.up, at.up + D));
  }
  engine.norm(`${name}_norm`, x, 1);
  const first = engine.shared(h);
  engine.linear(`${name}.key`, at.normed, at.up, 1, C, engine.G * D);
  if (config.qk_norm) {
    const { scale } = engine.moments(at.up + first, D);
    direction = engine.before(`${name}.k_norm`, direction).map((each) => each * scale);
  }
  const [weight, bias] = ["weight", "bias"].map((each) => at[`${name}.key.${each}`]);
  const read = Float64Array.from({ length: C }, (_, c) =>
    direction.reduce((sum, each, i) => sum + each * memory[weight + (first + i) * C + c], 0));
  return {
    rank: 2 * l, position: k, now, value: now(engine),
    direction: engine.before(`${name}_norm`, read), times: { [k]: engine.normScale(x) },
    bias: engine.biased(`${name}_norm`, read) +
      direction.reduce((sum, each, i) => sum + each * (memory[bias + first + i] || 0), 0),
  };
}

export class Circuit {
  /** Of what a goal says, in the unedited text that the engine has computed. */
  constructor(engine, goal) {
    const { C } = engine, T = goal.position + 1;
    Object.assign(this, { engine, T, goal, nodes: [], x0: engine.take("x0", C) });
    this.parts = []; // by rank; without MLPs, every other one is missing
    for (let rank = 0; rank < goal.rank; rank += engine.hidden ? 1 : 2) {
      this.parts[rank] = this.keep(rank);
    }
    const seen = new Float64Array(T * C); // the direction, as seen from the residual stream
    seen.set(goal.direction.map((x) => x * goal.times[T - 1]), (T - 1) * C);
    for (const part of this.parts.filter(Boolean).reverse()) this.back(part, seen);
    for (let s = 0; s < T; s++) this.addNode(-1, 0, s, seen.subarray(s * C), this.x0, s * C, C);
    this.nodes.sort((a, b) => Math.abs(b.value) - Math.abs(a.value));
  }

  addNode(rank, index, position, to, given, first, count) {
    const value = product(given.subarray(first, first + count), to);
    if (value) this.nodes.push({ rank, index, position, value });
  }

  /** What is held fixed of a layer's heads or neurons: what each gives, the norm's scales,
   * attention weights, or gates: what a neuron gives divided by what is linear in its input. */
  keep(rank) {
    const { engine, T } = this, l = rank >> 1, mlp = rank & 1, name = `blocks.${l}`;
    const { at, C, D, H, hidden } = engine, width = mlp ? hidden : C;
    const part = {
      rank, mlp, width, size: mlp ? 1 : D, // channels of all nodes, and of one
      norm: `${name}.${mlp ? "mlp" : "attn"}_norm`,
      ...(mlp ? { reading: `${name}.mlp.up`, writing: `${name}.mlp.down`, rowOf: (j) => j }
        : { reading: `${name}.attn.value`, writing: `${name}.attn.out`,
          rowOf: (j) => engine.shared(Math.floor(j / D)) + j % D }),
      given: engine.take(`z${l}`, C), weights: range(H).map((h) => engine.attention(l, h)),
      to: new Float64Array(T * width), scales: new Float64Array(T),
    };
    if (mlp) [part.given, part.gates] = [0, 1].map(() => new Float32Array(T * hidden));
    for (let s = 0; s < T; s++) {
      const { scale, before, after } = mlp ? engine.neurons(l, s)
        : { scale: engine.normScale(at[`x${l}`] + s * C) };
      part.scales[s] = scale;
      if (!mlp) continue;
      part.given.set(after, s * hidden);
      part.gates.set(before.map((u, j) => (u ? after[j] / u : 0)), s * hidden);
    }
    return part;
  }

  /** Return the fraction of a channel's input at s that it passes to t. */
  passes({ mlp, gates, weights, width }, channel, s, t) {
    if (mlp) return s === t ? gates[t * width + channel] : 0;
    return weights[Math.floor(channel / this.engine.D)][triangle(t) + s];
  }

  /** Map the direction after heads or neurons to the one before them, in place; add their nodes. */
  back(part, seen) {
    const { T, engine } = this, { memory, at, C } = engine, { rank, mlp, width, size, to } = part;
    const [read, written] = [at[`${part.reading}.weight`], at[`${part.writing}.weight`]];
    for (let s = 0; s < T; s++) {
      const there = to.subarray(s * width, (s + 1) * width);
      for (let c = 0; c < C; c++) {
        const x = seen[s * C + c];
        if (x) for (let j = 0; j < width; j++) there[j] += x * memory[written + c * width + j];
      }
      for (let j = 0; j < width; j += size) {
        this.addNode(rank, j / size, s, there.subarray(j), part.given, s * width + j, size);
      }
    }
    for (let s = 0; s < T; s++) {
      const before = new Float64Array(C);
      for (let j = 0; j < width; j++) {
        let factor = 0;
        for (let t = s; t < (mlp ? s + 1 : T); t++) {
          const x = to[t * width + j];
          if (x) factor += x * this.passes(part, j, s, t);
        }
        const row = read + part.rowOf(j) * C;
        if (factor) for (let c = 0; c < C; c++) before[c] += factor * memory[row + c];
      }
      const added = engine.before(part.norm, before);
      for (let c = 0; c < C; c++) seen[s * C + c] += part.scales[s] * added[c];
    }
  }

  /** Return what a node writes into the residual stream, C numbers. */
  written({ rank, index, position }) {
    const { C } = this.engine;
    if (rank < 0) return this.x0.subarray(position * C, (position + 1) * C);
    const { given, width, size, writing } = this.parts[rank];
    const first = position * width + index * size;
    return this.engine.written(writing, width, index * size, given.subarray(first, first + size));
  }

  /** The direction that a node reads in the residual stream; `times`, by position, what that is
   * multiplied by; and what the biases on its own way add. */
  reads({ rank, index, position, ...node }) {
    if (rank === this.goal.rank) return node;
    const { engine: { memory, at, C }, parts: { [rank]: part } } = this;
    const { width, size, mlp, scales, to, reading, norm } = part, times = {};
    for (let s = mlp ? position : 0; s <= position; s++) {
      times[s] = scales[s] * this.passes(part, index * size, s, position);
    }
    const direction = new Float64Array(C);
    let bias = 0;
    for (let j = index * size; j < (index + 1) * size; j++) {
      const factor = to[position * width + j], row = part.rowOf(j);
      const weight = at[`${reading}.weight`] + row * C;
      for (let c = 0; c < C; c++) direction[c] += factor * memory[weight + c];
      bias += factor * (memory[at[`${reading}.bias`] + row] || 0);
    }
    bias += this.engine.biased(norm, direction);
    if (mlp) bias *= part.gates[position * width + index]; // the weights of a head sum to 1
    return { direction: this.engine.before(norm, direction), times, bias };
  }

  /** Edges from some nodes to one, and what biases add; over all nodes, the sum is its value. */
  edges(to, nodes) {
    const { direction, times, bias } = this.reads(to);
    const factors = sum(Object.values(times));
    const below = this.parts.filter(({ rank }) => rank < to.rank);
    const biases = below.reduce((total, { writing }) =>
      total + factors * this.engine.biased(writing, direction), bias);
    const edges = nodes.filter(({ rank, position }) => rank < to.rank && position in times)
      .map((from) => ({ from, to,
        value: times[from.position] * product(this.written(from), direction) }));
    return { edges, biases };
  }
}
