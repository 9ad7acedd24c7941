// The model of model/gpt.py, computed row by row, so that only what an edit changes is computed
// again. Rows before a changed position, and layers below a changed layer, are kept.
//
// Letters as in model/attention.py: T positions, S keys, C width, H heads, D = C / H, G heads of
// keys and values, L layers, V vocabulary. All numbers are in the memory of kernels.js, which has
// the matmul. Keys and values that heads share are repeated for each, so that an edit changes one.

import { activate, arena, fours, product } from "./kernels.js";
import { mean, range, sameAtStart, triangle } from "./numbers.js";
import { countOf } from "./shapes.js";

const EPS = 1e-5; // of every norm
export const CHUNK = 16; // rows between two yields, and queries that attend together: tiles of four

const shelves = []; // weights in memory: {key, start, count, users}

/** The sizes of a model, by the letters above: L, H, G, C, B (block_size), D, V; `hidden`, the
 * number of neurons of an MLP, 0 without MLPs; `windows`, of the positions that queries attend to,
 * by layer. */
export function sizesOf(config, shapes) {
  const { n_layer: L, n_head: H, n_embd: C, block_size: B, window, mlp_ratio } = config;
  const [, [V]] = shapes.find(([name]) => name === "token_embedding.weight");
  return { L, H, G: config.n_kv_head ?? H, C, B, D: C / H, V, hidden: mlp_ratio * C,
    windows: range(L).map((l) => (window[l] ?? window) || B) };
}

export class Engine {
  /** @param config the fields of configs/config.py
   * @param shapes [name, shape] of each weight, in the order in which `load` writes them */
  constructor(config, shapes) {
    Object.assign(this, { config }, sizesOf(config, shapes));
    const { L, H, C, B } = this;
    this.ngramRows = shapes.filter(([name]) => name.startsWith("ngram")).map(([, [rows]]) => rows);
    this.pairs = triangle(B); // of a query and a key: the weights of a head
    this.unembedding = config.tie_embeddings ? "token_embedding" : "head";
    this.at = {}; // where each tensor begins
    for (let l = 0; l <= L; l++) this.place(`x${l}`, B * C); // the residual stream
    for (let l = 0; l < L; l++) {
      for (const name of ["q", "k", "v", "z", "attn", "mlp"]) this.place(name + l, B * C);
      this.place(`weights${l}`, H * this.pairs);
    }
    this.place("normed", CHUNK * C);
    for (const name of ["up", "active"]) { // neurons, before and after; `up` is scratch, too
      this.place(name, CHUNK * Math.max(this.hidden, C));
    }
    this.place("scores", CHUNK * fours(B));
    this.place("logits", B * this.V);
    this.place("lens", CHUNK * this.V);
    for (const name of ["cos", "sin"]) this.place(name, (B * this.D) / 2);
    this.offsets = {}; // of each weight, after the first
    this.weightCount = 0;
    for (const tensor of shapes) {
      this.offsets[tensor[0]] = this.weightCount;
      this.weightCount += countOf(tensor);
    }
    if (config.positions === "rotary") this.tabulateRotations();
    this.means = null; // of each head's output, (L, H, D), for edits that put it there
    this.tokens = [];
    this.edits = [];
    this.valid = new Array(L + 2).fill(0); // number of valid rows of x0 to xL, and of the logits
  }

  place(name, size) { this.at[name] = arena.reserve(size); }

  /** A view of the numbers of all engines. Do not keep it, because the memory may grow. */
  get memory() { return arena.floats; }

  /** Use the weights of `key`, one tensor after the other. Engines share them; `fill` writes them,
   * over zeros, only if no engine has them yet. The key is an object that stands for these weights
   * alone, so that two models never share by a number or a name that both have. */
  load(key, fill, means = null) {
    if (this.shelf?.key === key) return;
    const count = this.weightCount;
    this.shelf?.users.delete(this);
    this.shelf = shelves.find((shelf) => shelf.key === key && shelf.count === count) ??
      shelves.find((shelf) => !shelf.users.size && shelf.count === count);
    if (!this.shelf) {
      this.shelf = { start: arena.reserve(count), count, users: new Set() };
      shelves.push(this.shelf);
    }
    if (this.shelf.key !== key) {
      const { start } = this.shelf;
      this.shelf.key = key;
      fill(this.memory.subarray(start, start + count).fill(0));
    }
    this.shelf.users.add(this);
    for (const name of Object.keys(this.offsets)) {
      this.at[name] = this.shelf.start + this.offsets[name];
    }
    this.means = means;
    this.valid.fill(0);
  }

  tabulateRotations() {
    const { memory, at } = this;
    const half = this.D / 2;
    for (let t = 0; t < this.B; t++) {
      for (let i = 0; i < half; i++) {
        const angle = t * 10000 ** (-i / half);
        memory[at.cos + t * half + i] = Math.cos(angle);
        memory[at.sin + t * half + i] = Math.sin(angle);
      }
    }
  }

  // ------------------------------------------------------------------------- computing
  /** Set what to compute next: at most `block_size` tokens, and edits of the computation:
   *
   *     {layer, head, off: "zero" or "mean"}    a head's output, before W_O
   *     {layer, off: "mlp"}                     the MLP of a layer
   *     {layer, neuron, position}               a neuron of the MLP at a position, set to zero
   *     {layer, head, hide}                     a position that no later position may attend to
   *     {layer, head, position, by}             the key there, rotated by more positions
   *     {layer, position, row}                  the residual stream before a layer, C numbers
   *     {layer, head, position, row}            a head's output before W_O, D numbers */
  set(tokens, edits = []) {
    if (tokens.length > this.B) throw new Error(`${tokens.length} tokens, block_size ${this.B}`);
    this.forget(0, sameAtStart(this.tokens, tokens));
    const all = [...this.edits, ...edits], same = sameAtStart(this.edits, edits);
    for (const edit of [...this.edits.slice(same), ...edits.slice(same)]) {
      const { layer, position = 0, hide } = edit;
      if (isPatch(edit)) {
        const there = all.filter((other) =>
          isPatch(other) && other.layer === layer && other.position === position);
        if (there.length > 1 || position >= this.valid[layer]) this.forget(layer, position);
        else if (edits.includes(edit)) this.put(edit);
        else this.memory.set(edit.under, this.at[`x${layer}`] + position * this.C);
      }
      this.forget(layer + 1, hide === undefined ? position : hide + 1);
    }
    this.tokens = [...tokens];
    this.edits = [...edits];
  }

  /** Write a row into the residual stream, and keep the previous row. */
  put(edit) {
    const x = this.at[`x${edit.layer}`] + edit.position * this.C;
    edit.under = this.memory.slice(x, x + this.C);
    this.memory.set(edit.row, x);
  }

  /** Mark the rows from `row` to be computed again, from `x<layer>` upwards. */
  forget(layer, row) {
    for (let l = layer; l < this.valid.length; l++) this.valid[l] = Math.min(this.valid[l], row);
  }

  /** Compute what is missing; yield to let the page handle events; stop if `set` is called. */
  *compute() {
    const { tokens, edits, L, C, V, valid, at } = this;
    const T = tokens.length;
    this.embed(valid[0], T);
    valid[0] = T;
    for (let l = 0; l <= L; l++) {
      while (valid[l + 1] < T) {
        const from = valid[l + 1];
        const to = Math.min(from + CHUNK, T);
        if (l < L) {
          this.block(l, from, to);
          this.patch(l + 1, from, to);
        } else {
          this.unembed(at[`x${L}`] + from * C, at.logits + from * V, to - from);
        }
        valid[l + 1] = to;
        yield;
        if (this.tokens !== tokens || this.edits !== edits) return;
      }
    }
  }

  /** Return the logits of every position, (T, V), without yielding. */
  run(tokens, edits = []) {
    this.set(tokens, edits);
    for (const _ of this.compute());
    return this.memory.subarray(this.at.logits, this.at.logits + tokens.length * this.V);
  }

  embed(from, to) {
    const { memory, at, C } = this;
    for (let t = from; t < to; t++) {
      const x = at.x0 + t * C;
      memory.fill(0, x, x + C);
      for (const [name, row] of this.embeddings(t)) this.add(x, at[`${name}.weight`] + row * C, C);
    }
    this.patch(0, from, to);
  }

  /** Yield the [table, row] of each embedding whose sum is the input at position t. */
  *embeddings(t) {
    const { tokens, V, ngramRows, config: { positions } } = this;
    yield ["token_embedding", tokens[t]];
    if (positions === "learned") yield ["position_embedding", t];
    let power = 1, number = tokens[t];
    for (const [i, rows] of ngramRows.entries()) {
      power = (power * V) % rows;
      number += (tokens[t - i - 1] ?? 0) * power;
      yield [`ngram_embeddings.${i}`, number % rows];
    }
  }

  add(to, from, count) {
    const { memory } = this;
    for (let i = 0; i < count; i++) memory[to + i] += memory[from + i];
  }

  patch(layer, from, to) {
    for (const edit of this.edits) {
      const { layer: l, position } = edit;
      if (isPatch(edit) && l === layer && from <= position && position < to) this.put(edit);
    }
  }

  /** Compute a block, attention and MLP, for the rows `from` to `to` of the residual stream. */
  block(l, from, to) {
    const { memory, at, C, D, H, G, hidden } = this;
    const rows = to - from;
    const [x, next] = [at[`x${l}`] + from * C, at[`x${l + 1}`] + from * C];
    const [attn, mlp] = [at[`attn${l}`] + from * C, at[`mlp${l}`] + from * C];
    const name = `blocks.${l}`;
    this.norm(`${name}.attn_norm`, x, rows);
    for (const [kind, letter, heads] of [["query", "q", H], ["key", "k", G], ["value", "v", G]]) {
      const y = at[letter + l] + from * C;
      this.linear(`${name}.attn.${kind}`, at.normed, y, rows, C, heads * D);
      if (letter !== "v") this.normAndRotate(`${name}.attn.${letter}_norm`, y, from, to, heads);
      this.repeat(y, rows, heads);
    }
    for (const { layer, head, position: t, by } of this.edits) {
      if (by && layer === l && from <= t && t < to) {
        this.rotateOne(at[`k${l}`] + t * C + head * D, Math.abs(by), Math.sign(by));
      }
    }
    this.attend(l, from, to);
    this.linear(`${name}.attn.out`, at[`z${l}`] + from * C, attn, rows, C, C);
    memory.copyWithin(next, x, x + rows * C);
    this.add(next, attn, rows * C);
    if (!hidden) return;

    this.norm(`${name}.mlp_norm`, next, rows);
    this.linear(`${name}.mlp.up`, at.normed, at.up, rows, C, hidden);
    activate(this.config.activation, memory, at.up, at.active, rows * hidden);
    for (const { neuron, layer, position: t } of this.edits) {
      if (neuron !== undefined && layer === l && from <= t && t < to) {
        memory[at.active + (t - from) * hidden + neuron] = 0;
      }
    }
    this.linear(`${name}.mlp.down`, at.active, mlp, rows, hidden, C);
    if (this.edits.some((edit) => edit.off === "mlp" && edit.layer === l)) {
      memory.fill(0, mlp, mlp + rows * C);
    }
    this.add(next, mlp, rows * C);
  }

  /** The first channel of the keys and values that head h shares with others. */
  shared(h) { return Math.floor((h * this.G) / this.H) * this.D; }

  /** Repeat the keys or values of some heads for all, in place: from (rows, G D) to (rows, H D). */
  repeat(y, rows, heads) {
    const { memory, H, D } = this;
    if (heads === H) return;
    for (let i = rows * H - 1; i > 0; i--) {
      const from = y + Math.floor(i / H) * heads * D + this.shared(i % H);
      memory.copyWithin(y + i * D, from, from + D);
    }
  }

  /** Compute attention head by head for blocks of queries, with the edits. Scores of later keys are
   * computed too, and then hidden: larger matmuls are faster. */
  attend(l, from, to) {
    const { memory, at, C, D, H, pairs } = this, window = this.windows[l];
    const edits = this.edits.filter(({ layer }) => layer === l);
    const { [`q${l}`]: q, [`k${l}`]: k, [`v${l}`]: v, [`z${l}`]: z, scores } = at;
    const scale = 1 / Math.sqrt(D);
    memory.fill(0, z + from * C, z + to * C);
    for (let h = 0; h < H; h++) {
      const own = edits.filter(({ head }) => head === h);
      const [d, weights] = [h * D, at[`weights${l}`] + h * pairs];
      for (let first = from; first < to; first += CHUNK) {
        const keys = Math.min(first + CHUNK, to), rows = keys - first, width = fours(keys);
        arena.multiply(q + first * C + d, k + d, scores, rows, D, keys, C, C, width);
        for (let t = first, row = scores; t < keys; t++, row += width) {
          for (const { hide } of own) if (hide < t) memory[row + hide] = -Infinity;
          memory.fill(-Infinity, row + t + 1, row + width);
          if (t >= window) memory.fill(-Infinity, row, row + t + 1 - window);
        }
        arena.softmaxRows(scores, rows, width, scale);
        for (let t = first, row = scores; t < keys; t++, row += width) {
          memory.copyWithin(weights + triangle(t), row, row + t + 1);
        }
        arena.addProduct(scores, v + d, z + first * C + d, rows, keys, D, C, width, C);
      }
      for (const { off, row, position } of own) {
        for (let t = from, out = z + from * C + d; t < to; t++, out += C) {
          if (off === "zero") memory.fill(0, out, out + D);
          if (off === "mean") memory.set(this.means.subarray(l * C + d, l * C + d + D), out);
          if (row && position === t) memory.set(row, out);
        }
      }
    }
  }

  unembed(x, logits, rows) {
    this.norm("final_norm", x, rows);
    this.linear(this.unembedding, this.at.normed, logits, rows, this.C, this.V);
  }

  /** Normalize rows at x into `normed`. */
  norm(name, x, rows) {
    this.normalize(name, x, this.at.normed, rows, this.C);
  }

  normalize(name, x, y, rows, width) {
    const { memory, at } = this;
    const weight = at[`${name}.weight`];
    const bias = at[`${name}.bias`];
    for (let r = 0; r < rows; r++, x += width, y += width) {
      const { mean, scale } = this.moments(x, width);
      for (let c = 0; c < width; c++) {
        memory[y + c] = (memory[x + c] - mean) * scale * memory[weight + c];
      }
      if (bias !== undefined) this.add(y, bias, width);
    }
  }

  /** Return the mean that a norm subtracts from the numbers at x, and the scale it applies then. */
  moments(x, width) {
    const { memory } = this;
    let [mean, variance] = [0, 0];
    for (let c = 0; c < width; c++) mean += memory[x + c];
    mean /= width;
    for (let c = 0; c < width; c++) variance += (memory[x + c] - mean) ** 2;
    return { mean, scale: 1 / Math.sqrt(variance / width + EPS) };
  }

  /** Normalize and rotate the queries or keys of each head in place, if the config says so. */
  normAndRotate(name, y, from, to, heads) {
    if (this.config.qk_norm) this.normalize(name, y, y, (to - from) * heads, this.D);
    if (this.config.positions === "rotary") this.rotate(y, from, to, heads, 1);
  }

  /** Rotate queries or keys in place, or back if `direction` is -1. */
  rotate(y, from, to, heads, direction) {
    for (let t = from; t < to; t++) {
      for (let h = 0; h < heads; h++, y += this.D) this.rotateOne(y, t, direction);
    }
  }

  /** Rotate the D numbers at y by t positions. */
  rotateOne(y, t, direction) {
    const { memory, at: { cos, sin } } = this, half = this.D / 2;
    for (let i = 0; i < half; i++) {
      const across = memory[cos + t * half + i], up = memory[sin + t * half + i] * direction;
      const a = memory[y + i];
      const b = memory[y + half + i];
      memory[y + i] = a * across - b * up;
      memory[y + half + i] = b * across + a * up;
    }
  }

  /** x W^T + b, from (rows, K) to (rows, N). */
  linear(name, x, y, rows, K, N) {
    const { at } = this;
    arena.multiply(x, at[`${name}.weight`], y, rows, K, N);
    const bias = at[`${name}.bias`];
    if (bias === undefined) return;
    for (let r = 0; r < rows; r++) this.add(y + r * N, bias, N);
  }

  // -------------------------------------------------------------------------- results
  /** Return a copy of the first T rows of a result. */
  take(name, width) {
    const from = this.at[name];
    return this.memory.slice(from, from + this.tokens.length * width);
  }

  /** Return the attention weights of a head: for t = 0 to T - 1, the t + 1 weights of query t. */
  attention(l, h) {
    const from = this.at[`weights${l}`] + h * this.pairs;
    return this.memory.slice(from, from + triangle(this.tokens.length));
  }

  /** Return the logit lens: the logits (T, V) of a model that ends after `layers` layers. */
  lens(layers) {
    const { memory, at, C, V } = this;
    const T = this.tokens.length;
    const logits = new Float32Array(T * V);
    for (let t = 0; t < T; t += CHUNK) {
      const rows = Math.min(CHUNK, T - t);
      this.unembed(at[`x${layers}`] + t * C, at.lens, rows);
      logits.set(memory.subarray(at.lens, at.lens + rows * V), t * V);
    }
    return logits;
  }

  /** Return the scale that a norm applies to the numbers at x, before its weights. */
  normScale(x) { return this.moments(x, this.C).scale; }

  /** Return of an MLP at t, without edits: the scale of its norm, and its neurons before and after
   * the nonlinearity. */
  neurons(l, t) {
    const { memory, at, C, hidden, config } = this, name = `blocks.${l}`;
    memory.copyWithin(at.up, at[`x${l}`] + t * C, at[`x${l}`] + (t + 1) * C);
    this.add(at.up, at[`attn${l}`] + t * C, C);
    const scale = this.normScale(at.up);
    this.norm(`${name}.mlp_norm`, at.up, 1);
    this.linear(`${name}.mlp.up`, at.normed, at.up, 1, C, hidden);
    activate(config.activation, memory, at.up, at.active, hidden);
    const [before, after] = [at.up, at.active].map((from) => memory.slice(from, from + hidden));
    return { scale, before, after };
  }

  /** Return what the channels from `first` of `width` write into the residual stream. */
  written(name, width, first, values) {
    const { memory, at, C } = this, weight = at[`${name}.weight`] + first;
    return Float64Array.from({ length: C }, (_, c) =>
      product(values, memory.subarray(weight + c * width)));
  }

  /** Return what a residual vector adds to each logit, before the final norm's scale. */
  logitsOf(x) {
    const { memory, at, C, V } = this, table = at[`${this.unembedding}.weight`];
    const average = mean(x);
    const y = x.map((each, c) => (each - average) * memory[at["final_norm.weight"] + c]);
    return Float64Array.from({ length: V }, (_, id) => product(y, memory.subarray(table + id * C)));
  }

  /** Map a direction in a norm's output to its input, without the norm's scale. */
  before(name, direction) {
    const { memory, at } = this;
    const seen = direction.map((x, c) => x * memory[at[`${name}.weight`] + c]);
    // Subtracting the mean from the input is the same as subtracting it from the direction.
    const average = mean(seen);
    return seen.map((x) => x - average);
  }

  /** Return the product of a direction with a bias of the model, or 0. */
  biased(name, direction) {
    const bias = this.at[`${name}.bias`];
    return bias === undefined ? 0 : product(direction, this.memory.subarray(bias));
  }

  /** Return a token's embedding, C numbers, plus that of a position, if it is given and learned. */
  embedding(token, position) {
    const { memory, at, C, config } = this;
    const row = (table, i) => memory.slice(at[table] + i * C, at[table] + (i + 1) * C);
    const x = row("token_embedding.weight", token);
    if (config.positions !== "learned" || position === undefined) return x;
    return row("position_embedding.weight", position).map((p, c) => x[c] + p);
  }

  /** Return the queries, keys or values ("query") of a layer for inputs of C numbers, (inputs, C),
   * before the rotation, and after QK-norm if it is asked for. */
  projected(l, kind, inputs, isNormed = false) {
    const { memory, at, C, D } = this, heads = kind === "query" ? this.H : this.G;
    const found = new Float32Array(inputs.length * C), name = `blocks.${l}.attn`;
    for (let first = 0; first < inputs.length; first += CHUNK) {
      const some = inputs.slice(first, first + CHUNK), rows = some.length;
      some.forEach((x, r) => memory.set(x, at.up + r * C));
      this.norm(`${name}_norm`, at.up, rows);
      this.linear(`${name}.${kind}`, at.normed, at.up, rows, C, heads * D);
      if (isNormed) this.normalize(`${name}.${kind[0]}_norm`, at.up, at.up, rows * heads, D);
      this.repeat(at.up, rows, heads);
      found.set(memory.subarray(at.up, at.up + rows * C), first * C);
    }
    return found;
  }

  /** Return of a token's logit, perhaps minus another's: the direction in the residual stream at t
   * that adds to it, before the scale of the final norm; that scale; and what biases add. */
  toLogit(t, plus, minus = null) {
    const { memory, at, C, L, unembedding } = this;
    const relative = (number) => number(plus) - (minus === null ? 0 : number(minus));
    const [weight, bias] = ["weight", "bias"].map((each) => at[`${unembedding}.${each}`]);
    const row = Float64Array.from({ length: C }, (_, c) =>
      relative((token) => memory[weight + token * C + c]));
    return {
      direction: this.before("final_norm", row), scale: this.normScale(at[`x${L}`] + t * C),
      bias: this.biased("final_norm", row) + relative((token) => memory[bias + token] || 0),
    };
  }

  /** Return what each part adds to a logit, perhaps minus another, with the scale of the final norm
   * held fixed. */
  contributions(t, plus, minus) {
    const { memory, at, C, D, L } = this;
    const from = (x, count) => memory.subarray(x, x + count);
    const { direction: before, scale, bias } = this.toLogit(t, plus, minus);
    const direction = before.map((x) => x * scale), along = (y) => product(from(y, C), direction);
    const found = { embedding: along(at.x0 + t * C), heads: [], mlps: [], biases: bias };
    for (let l = 0; l < L; l++) {
      const out = `blocks.${l}.attn.out`;
      for (let d = 0; d < C; d += D) {
        const z = from(at[`z${l}`] + t * C + d, D);
        found.heads.push(product(direction, this.written(out, C, d, z)));
      }
      found.mlps.push(along(at[`mlp${l}`] + t * C));
      found.biases += this.biased(out, direction);
    }
    return found;
  }
}

/** Whether an edit changes the residual stream. */
const isPatch = ({ row, head }) => row !== undefined && head === undefined;

/** First position that the model sees at `position` of a text; see model/generate.py. */
export function windowStart(position, blockSize) {
  const hop = blockSize - Math.floor(blockSize / 2);
  return Math.max(0, Math.floor((position - blockSize) / hop) + 1) * hop;
}
