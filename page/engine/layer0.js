// The heads of layer 0, from the weights alone. Without n-gram embeddings, the input of layer 0 at
// a position depends only on the token (and on the position, if it is embedded). So the scores of
// its heads, and their logit contributions, are tables over the vocabulary.

import { scoresOfPairs } from "./kernels.js";

const MOST_TOKENS = 300; // the largest vocabulary whose tables can be drawn

/** The reason why the heads of layer 0 cannot be read from the weights, or null. */
export function unreadable({ ngrams }, V) {
  if (ngrams > 1) return "with n-gram embeddings, a position has several tokens";
  return V > MOST_TOKENS ? `a table over a vocabulary of ${V} would be too large` : null;
}

export class Layer0 {
  /** @param tokens the rows and columns of the tables */
  constructor(engine, tokens) {
    Object.assign(this, { engine, tokens, made: {} });
  }

  /** Return the "query", "key" or "value" of each token, (tokens, C), averaged over positions. */
  rows(kind, positions) {
    const { engine, tokens, made } = this;
    const learned = engine.config.positions === "learned";
    const each = (learned ? positions : [0]).map((position) =>
      (made[kind + position] ??= engine.layer0(kind, tokens, position)));
    const mean = Float64Array.from(each[0], (_, i) =>
      each.reduce((total, rows) => total + rows[i], 0) / each.length);
    const rotary = engine.config.positions === "rotary" && kind !== "value";
    return rotary ? this.rotated(mean, positions) : mean;
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

  /** Return the scores q.k / sqrt(D) of a head, (query tokens, key tokens), averaged over one of
   * the lists of positions. With rotary positions, only the distance matters. */
  scores(h, queryPositions, keyPositions) {
    const { C, D } = this.engine;
    const [Q, K] = [this.rows("query", queryPositions), this.rows("key", keyPositions)];
    return scoresOfPairs(Q, K, h, C, D);
  }

  /** Return what a head adds to each logit, (tokens, V), per unit of weight on a token at a
   * position, by the direct path: W_O, the final norm's weights and the unembedding. The final
   * norm's scale, which depends on the text, is left out. */
  logits(h, position) {
    const { engine, tokens, engine: { C, D } } = this;
    const values = this.rows("value", [position]);
    return Float32Array.from(tokens.flatMap((_, i) => {
      const value = values.subarray(i * C + h * D, i * C + (h + 1) * D);
      return [...engine.logitsOf(engine.written("blocks.0.attn.out", C, h * D, value))];
    }));
  }
}
