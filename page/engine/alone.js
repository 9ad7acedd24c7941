// Heads, from the weights alone. Without n-gram embeddings, the input of layer 0 at a position
// depends only on the token (and on the position, if it is embedded). So the scores of its heads,
// and their logit contributions, are tables over the vocabulary. A later head has such a table for
// each earlier head that may have copied a token to the key's position.

import { scoresOfPairs } from "./kernels.js";

const MOST_TOKENS = 300; // the largest vocabulary whose tables can be drawn

/** The reason why heads cannot be read from the weights, or null. */
export function unreadable({ ngrams }, V) {
  if (ngrams > 1) return "with n-gram embeddings, a position has several tokens";
  return V > MOST_TOKENS ? `a table over a vocabulary of ${V} would be too large` : null;
}

export class Alone {
  /** @param tokens the rows and columns of the tables */
  constructor(engine, tokens) {
    Object.assign(this, { engine, tokens, made: {} });
  }

  /** Return the "query" or "key" of each token in layer 0, (tokens, C), averaged over positions. */
  rows(kind, positions) {
    const { engine, tokens, made, engine: { config } } = this;
    const each = (config.positions === "learned" ? positions : [0]).map((position) =>
      (made[kind + position] ??= engine.projected(0, kind,
        tokens.map((token) => engine.embedding(token, position)), config.qk_norm)));
    const mean = Float64Array.from(each[0], (_, i) =>
      each.reduce((total, rows) => total + rows[i], 0) / each.length);
    return config.positions === "rotary" ? this.rotated(mean, positions) : mean;
  }

  /** Rotate rows as at each of the positions, and average. */
  rotated(rows, positions) {
    const { memory, at, D } = this.engine;
    const half = D / 2;
    const [cos, sin] = [at.cos, at.sin].map((table) => Array.from({ length: half }, (_, i) =>
      positions.reduce((total, t) => total + memory[table + t * half + i], 0) / positions.length));
    return rows.map((x, i) => {
      const first = i % D < half;
      const other = first ? -rows[i + half] : rows[i - half];
      return x * cos[i % half] + other * sin[i % half];
    });
  }

  /** Return the scores q.k / sqrt(D) of a head of layer 0, (query tokens, key tokens), averaged
   * over one of the lists of positions. With rotary positions, only the distance matters. */
  scores(h, queryPositions, keyPositions) {
    const { C, D } = this.engine;
    const [Q, K] = [this.rows("query", queryPositions), this.rows("key", keyPositions)];
    return scoresOfPairs(Q, K, h, C, D);
  }

  /** Return what a head adds to the residual stream per unit of weight on each token: C numbers. */
  written([l, h], position) {
    const { engine, tokens, engine: { C, D } } = this;
    const inputs = tokens.map((token) => engine.embedding(token, position));
    const values = engine.projected(l, "value", inputs);
    return tokens.map((_, i) => engine.written(`blocks.${l}.attn.out`, C, h * D,
      values.subarray(i * C + h * D, i * C + (h + 1) * D)));
  }

  /** Return the scores of a later head, (query tokens, key tokens), with keys into which an earlier
   * head copied a token: q = W_Q n(E_a) and k = W_K n(W_O W_V n(E_b)), where n is the norm of each
   * layer. Positions, QK-norm and MLPs are left out. See lens/composition.py. */
  scoresThrough(earlier, [l, h]) {
    const { engine, tokens, engine: { C, D } } = this;
    const Q = engine.projected(l, "query", tokens.map((token) => engine.embedding(token)));
    return scoresOfPairs(Q, engine.projected(l, "key", this.written(earlier)), h, C, D);
  }

  /** Return what a head adds to each logit, (tokens, V), per unit of weight on a token at a
   * position, by the direct path: W_O, the final norm's weights and the unembedding. The final
   * norm's scale, which depends on the text, is left out. */
  logits(head, position) {
    const { engine } = this;
    return Float32Array.from(this.written(head, position).flatMap((x) => [...engine.logitsOf(x)]));
  }
}
