// What n-grams predict: the probabilities of lens/ngram_model.py, from a sorted index of the training
// text.
//
// The context of a place is the tokens before it, the nearest first. `sorted` has all places in the
// order of their contexts, so that places whose last k tokens are the same are adjacent: a range.

import { clamp, sameAtStart, sum } from "./numbers.js";

export const DEPTH = 64; // tokens by which contexts are sorted
const OFTEN = 500; // places in a range whose counts are kept
const PART = 50_000; // places between two yields

/** Call `work(from, to)` for one part of the numbers below `count` after the other, and yield. */
function* inParts(count, work) {
  for (let from = 0; from < count; from += PART) {
    work(from, Math.min(from + PART, count));
    yield;
  }
}

/** The discounts of the counts 0, 1, 2, and 3 or more. `times`: how often each count occurs. */
function discountsOf(times) {
  const Y = times[1] / Math.max(1, times[1] + 2 * times[2]);
  return [0, ...[1, 2, 3].map((i) =>
    clamp(i - ((i + 1) * Y * times[i + 1]) / Math.max(1, times[i]), 0.1, i))];
}

export class NgramModel {
  /** @param tokens of the training text, a typed array
   * @param V size of the vocabulary
   * @param order length of the longest n-grams */
  constructor(tokens, V, order) {
    Object.assign(this, { tokens, V, order, size: tokens.length + 1 });
    this.slot = new Int32Array(V); // where a token is in `found`
    [this.found, this.counts, this.last] = [1, 2, 3].map(() => new Int32Array(V));
    this.often = Array.from({ length: order }, () => new Map()); // counts by the start of the range
    this.discounts = [];
    this.kept = { ids: [], surprisal: [] }; // of the last text
  }

  /** Make the index; yield to let the page handle events. */
  *build() {
    yield* this.sort();
    yield* this.estimate();
  }

  /** Sort all places by one token of their contexts, then by two, four, ... */
  *sort() {
    const { tokens, V, size, order } = this;
    const sorted = (this.sorted = new Int32Array(size)), spare = new Int32Array(size);
    let [rank, next] = [new Int32Array(size), new Int32Array(size)]; // rank: start of the range
    const starts = new Int32Array(V + 1).fill(1); // place 0, without a context, is the first
    for (const id of tokens) starts[id + 1]++;
    for (let id = 1; id <= V; id++) starts[id] += starts[id - 1] - 1;
    const ends = starts.slice();
    yield* inParts(tokens.length, (from, to) => {
      for (let p = from + 1; p <= to; p++) {
        rank[p] = starts[tokens[p - 1]];
        sorted[ends[tokens[p - 1]]++] = p;
      }
    });
    for (let depth = 1; depth < DEPTH; depth *= 2) {
      let count = Math.min(depth, size);
      for (let p = 0; p < count; p++) spare[p] = p;
      yield* inParts(size, (from, to) => { // by the tokens further back
        for (let i = from; i < to; i++) {
          next[i] = i;
          if (sorted[i] + depth < size) spare[count++] = sorted[i] + depth;
        }
      });
      yield* inParts(size, (from, to) => {
        for (let i = from; i < to; i++) sorted[next[rank[spare[i]]]++] = spare[i];
      });
      next[0] = 0;
      yield* inParts(size, (from, to) => {
        for (let i = Math.max(1, from); i < to; i++) {
          const p = sorted[i], q = sorted[i - 1]; // of the same rank only if both have that context
          next[p] = rank[p] === rank[q] && rank[p - depth] === rank[q - depth] ? next[q] : i;
        }
      });
      [rank, next] = [next, rank];
    }
    this.shared = new Uint8Array(size); // tokens in the context that the previous place has, too
    yield* inParts(size, (from, to) => {
      for (let i = Math.max(1, from); i < to; i++) {
        const p = sorted[i], q = sorted[i - 1], most = Math.min(order, p, q);
        let k = 0;
        while (k < most && tokens[p - 1 - k] === tokens[q - 1 - k]) k++;
        this.shared[i] = k;
      }
    });
  }

  /** Find the discounts of each order, and keep the counts of contexts that are frequent. */
  *estimate() {
    const { sorted, shared, size, order } = this;
    for (let k = 0; k < order; k++) {
      const times = new Float64Array(6);
      let start = 0; // of the range
      yield* inParts(size, (from, to) => {
        for (let i = from + 1; i <= to; i++) {
          if (i < size && shared[i] >= k) continue;
          if (sorted[start] >= k) { // else the text begins within these k tokens
            const found = this.tally(k, start, i);
            for (let j = 0; j < found; j++) times[Math.min(this.counts[j], 5)]++;
            if (i - start >= OFTEN) this.often[k].set(start, this.copy(found));
          }
          start = i;
        }
      });
      this.discounts[k] = discountsOf(times);
      for (const counted of this.often[k].values()) this.smooth(k, counted);
    }
  }

  /** Count what follows the places of a range with the same k tokens before: in the longest n-grams
   * every occurrence, in shorter ones the distinct tokens before. Return the number of distinct
   * tokens, which are in `found`. */
  tally(k, from, to, every = k >= this.order - 1) {
    const { sorted, tokens, slot, found, counts, last } = this;
    let count = 0;
    for (let i = from; i < to; i++) {
      const p = sorted[i];
      if (p === tokens.length || (!every && p === k)) continue; // nothing follows, or is before
      const id = tokens[p];
      let j = slot[id];
      if (j >= count || found[j] !== id) {
        j = slot[id] = count++;
        found[j] = id;
        counts[j] = 0;
        last[j] = -1;
      }
      if (!every) { // equal tokens before are adjacent
        const before = tokens[p - k - 1];
        if (last[j] === before) continue;
        last[j] = before;
      }
      counts[j]++;
    }
    return count;
  }

  copy(count) {
    return { ids: this.found.slice(0, count), counts: this.counts.slice(0, count) };
  }

  /** Add both terms of the formula: `shares` of the tokens, and what is `left` to shorter ones. */
  smooth(k, counted) {
    const discounts = this.discounts[k], total = sum(counted.counts);
    const shares = new Float32Array(counted.counts.length);
    let left = 0;
    counted.counts.forEach((count, j) => {
      const discount = discounts[Math.min(count, 3)];
      shares[j] = (count - discount) / total;
      left += discount;
    });
    return Object.assign(counted, { shares, left: total ? Math.fround(left / total) : 1 });
  }

  termsOf(k, [from, to]) {
    return this.often[k].get(from) ?? this.smooth(k, this.copy(this.tally(k, from, to)));
  }

  /** The ranges of the contexts of place t in a text, of lengths 0, 1, ... `most`, that occur. */
  ranges(ids, t, most = DEPTH) {
    let [from, to] = [0, this.size];
    const found = [[from, to]];
    for (let k = 0; k < Math.min(t, most); k++) {
      const id = ids[t - 1 - k];
      from = this.first(k, id, from, to);
      to = this.first(k, id + 1, from, to);
      if (from === to) break;
      found.push([from, to]);
    }
    return found;
  }

  /** Where, in a range with the same k tokens before, the token before these is at least `id`. */
  first(k, id, from, to) {
    while (from < to) {
      const middle = (from + to) >> 1, p = this.sorted[middle];
      if (p > k && this.tokens[p - 1 - k] >= id) to = middle;
      else from = middle + 1;
    }
    return from;
  }

  /** The surprisal of each token of a text in nats. The results before the first token that changed
   * are kept. */
  read(ids) {
    const { kept } = this;
    for (let t = sameAtStart(kept.ids, ids); t < ids.length; t++) {
      kept.surprisal[t] = -Math.log(this.predict(ids, t)[ids[t]]);
    }
    kept.surprisal.length = ids.length;
    kept.ids = [...ids];
    return Float64Array.from(kept.surprisal);
  }

  /** The probability of every token at place t of a text, (V,). */
  predict(ids, t) {
    const row = new Float64Array(this.V).fill(1 / this.V);
    this.ranges(ids, t, this.order - 1).forEach((range, k) => {
      const { ids: found, shares, left } = this.termsOf(k, range);
      for (let v = 0; v < row.length; v++) row[v] *= left;
      found.forEach((id, j) => { row[id] += shares[j]; });
    });
    return row;
  }

  /** The longest context of place t, up to DEPTH tokens, that something follows in the training
   * text: its length, all places after it, and what followed, most frequent first. */
  longest(ids, t) {
    const { sorted, tokens } = this, ranges = this.ranges(ids, t);
    const isEnd = ([from, to]) => to - from === 1 && sorted[from] === tokens.length;
    const length = ranges.findLastIndex((range) => !isEnd(range)), [from, to] = ranges[length];
    const { ids: found, counts } = this.copy(this.tally(length, from, to, true));
    const next = [...found].map((id, j) => ({ id, count: counts[j] }))
      .sort((a, b) => b.count - a.count || a.id - b.id);
    return { length, places: sorted.subarray(from, to), next };
  }
}
