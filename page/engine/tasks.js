// The tasks of data/tasks/: given the same random numbers, both make the same sequences.
//
// A sequence is an array of T + 1 tokens. `make(u, heldOut)` makes one of `numbers` random numbers;
// `match(tokens)` lists for each query the keys that determine the next token.

import { largestOf, mean, range, sum } from "./numbers.js";
import { Random } from "./random.js";

const OBSERVED = 4096; // sequences that the baseline "chance" is estimated from
const chars = (from, count) => range(count).map((i) => String.fromCharCode(from + i));
const [LOWER, UPPER, DIGITS] = [chars(97, 26), chars(65, 26), chars(48, 10)];
const LETTERS = [...LOWER, ...UPPER];
const PUNCTUATION = chars(33, 94).filter((char) => !/[a-z0-9]/i.test(char));
const VISIBLE = [...LETTERS, ...DIGITS, ...PUNCTUATION, ...chars(0x100, 0x1000)];

class Task {
  /** `data` are the fields of configs/config.py; `kinds` and `length` are for those that it omits. */
  constructor(data, T, [kinds, length] = []) {
    Object.assign(this, { data, T, n: data.task_kinds ?? kinds, size: data.task_length ?? length });
    this.numbers = T + 1;
  }

  /** Draw sequences with random numbers of a seed. */
  draw(seed, count, heldOut = false) {
    const random = new Random(seed), { numbers } = this;
    return range(count).map(() =>
      this.make(Float64Array.from({ length: numbers }, () => random.uniform()), heldOut));
  }

  /** Which tokens their context determines, as booleans. */
  answers(tokens) {
    const match = this.match(tokens);
    return tokens.map((_, t) => t > 0 && match[t - 1].length > 0);
  }

  /** The losses of simple predictions, in nats per token. "chance" predicts each token by its
   * frequency at its position. */
  baselines(sequences) {
    const V = this.vocab.length, counts = range(this.T + 1).map(() => new Float64Array(V).fill(1));
    for (const tokens of this.draw(-1, OBSERVED)) tokens.forEach((id, t) => counts[t][id]++);
    const chance = (tokens, t) => counts[t][tokens[t]] / (OBSERVED + V);
    return { uniform: Math.log(V), chance: lossOf(chance, sequences) };
  }
}

class Repeat extends Task {
  vocab = VISIBLE.slice(0, this.n);
  numbers = 1 + this.n;
  periods = [Math.max(1, Math.floor(this.size / 4)), this.size]; // the shortest and the longest

  make(u) {
    const [low, high] = this.periods, string = order(u.subarray(1));
    const period = low + Math.floor(u[0] * (high - low + 1));
    return range(this.T + 1).map((t) => string[t % period]);
  }

  match(tokens) { return afterSame(tokens); }

  baselines() { return { uniform: Math.log(this.n) }; }
}

class RepeatFixed extends Repeat {
  periods = [this.size, this.size];
}

class Sink extends Task {
  letters = this.n - 3;
  vocab = ["^", ...LETTERS.slice(0, this.letters), ..."012"];
  chain = range(this.n).map((row) =>
    range(this.n).map((i) => (-Math.log(scramble(row * this.n + i))) ** 3));

  make(u) {
    const tokens = [0, 1 + Math.floor(u[1] * this.letters)];
    for (let t = 2; t <= this.T; t++) {
      const before = tokens[t - 1];
      tokens.push(before > this.letters ? tokens[t - 2] : 1 + chooseBy(this.chain[before - 1], u[t]));
    }
    return tokens;
  }

  match(tokens) { return tokens.map((id, t) => (t && id > this.letters ? [t - 1] : [])); }
}

class Markov extends Task {
  vocab = LETTERS.slice(0, this.n);
  numbers = this.n ** 2 + this.T + 1;

  make(u) {
    const { n, T } = this, first = n ** 2, tokens = [Math.floor(u[first] * n)];
    const shares = Array.from(u.subarray(0, first), (x) => -Math.log(1 - x));
    for (let t = 1; t <= T; t++) {
      const row = n * tokens[t - 1];
      tokens.push(chooseBy(shares.slice(row, row + n), u[first + t]));
    }
    return tokens;
  }

  match(tokens) { return afterSame(tokens); }

  answers(tokens) { return tokens.map(() => false); }

  /** By counting in the context, from 1, the tokens or the bigrams. */
  baselines(sequences) {
    const loss = (countedBefore) => lossOf((tokens, t) => {
      const counted = tokens.slice(0, t).filter(countedBefore(tokens, t));
      return (1 + counted.filter((id) => id === tokens[t]).length) / (this.n + counted.length);
    }, sequences);
    return { uniform: Math.log(this.n), "in-context unigram": loss(() => () => true),
      "in-context bigram": loss((tokens, t) => (_, i) => tokens[i - 1] === tokens[t - 1]) };
  }
}

class Modular extends Task {
  vocab = [...range(this.n).map(String), "+", "="];
  words = this.vocab; // not characters
  pairs = splitPairs(this.n, this.data.task_held_out);
  numbers = 1;

  make(u, heldOut) {
    const { n } = this, [a, b] = choosePair(this.pairs[+heldOut], u[0], n);
    return [a, n, b, n + 1, (a + b) % n];
  }

  match(tokens) {
    const isSum = tokens[1] === this.n && tokens[3] === this.n + 1;
    return tokens.map((_, t) => (isSum && t === 3 ? [0, 2] : []));
  }
}

class Addition extends Task {
  vocab = [...DIGITS, "+", "=", "\n"];
  places = { // of the answer's digits, in their order; 0 for ones
    highest: range(this.size + 1).reverse(), lowest: range(this.size + 1),
    carry: [this.size, ...range(this.size)],
  }[this.data.task_order];
  width = 3 * this.size + 4;
  pairs = splitPairs(10 ** this.size, this.data.task_held_out);
  numbers = Math.ceil((this.T + 1) / this.width);

  make(u, heldOut) {
    const { size, places } = this, digit = (x, place) => Math.floor(x / 10 ** place) % 10;
    return Array.from(u, (each) => {
      const [a, b] = choosePair(this.pairs[+heldOut], each, 10 ** size);
      const [first, second] = [a, b].map((x) => range(size).map((i) => digit(x, size - 1 - i)));
      return [...first, 10, ...second, 11, ...places.map((place) => digit(a + b, place)), 12];
    }).flat().slice(0, this.T + 1);
  }

  /** The two digits with the place of the answer's, or, for its last carry, the highest place. */
  match(tokens) {
    const { size, width, places } = this, found = tokens.map(() => []);
    for (let start = 0; start < tokens.length - 2 * size - 1; start += width) {
      const equals = start + 2 * size + 1;
      if (tokens[start + size] !== 10 || tokens[equals] !== 11) continue;
      places.slice(0, tokens.length - equals).forEach((place, i) => {
        const digit = start + size - 1 - Math.min(place, size - 1);
        found[equals + i] = [digit, digit + size + 1];
      });
    }
    return found;
  }
}

class FlipFlop extends Task {
  vocab = [..."wri01"];

  make(u) {
    const ignored = this.data.task_ignored;
    let written;
    const tokens = Array.from(u, (x, t) =>
      (t % 2 ? 3 + (x < 0.5) : t === 0 ? 0 : x < ignored ? 2 : +(x < (1 + ignored) / 2)));
    for (let t = 1; t <= this.T; t += 2) {
      if (tokens[t - 1] === 0) written = tokens[t];
      if (tokens[t - 1] === 1) tokens[t] = written;
    }
    return tokens;
  }

  match(tokens) {
    return tokens.map((id, t) => {
      const at = 1 + tokens.lastIndexOf(0, t);
      return id === 1 && at > 0 ? [at] : [];
    });
  }
}

class Brackets extends Task {
  vocab = [..."([{<".slice(0, this.n), ...")]}>".slice(0, this.n)];

  make(u) {
    const { n, size } = this, stack = [];
    return Array.from(u, (x) => {
      const opens = !stack.length || (stack.length < size && x < 0.5);
      if (!opens) return n + stack.pop();
      return stack[stack.push(Math.floor(x * 2 % 1 * n)) - 1];
    });
  }

  /** The innermost open bracket, whether or not it closes next. */
  match(tokens) {
    const stack = [];
    return tokens.map((id, t) => {
      if (id < this.n) stack.push(t);
      else stack.pop();
      return stack.slice(-1);
    });
  }

  answers(tokens) { return super.answers(tokens).map((is, t) => is && tokens[t] >= this.n); }
}

class Recall extends Task {
  vocab = [...LOWER.slice(0, this.n), ...UPPER.slice(0, this.n)];
  numbers = 2 * this.n + this.T + 1;

  make(u) {
    const { n, size } = this, keys = order(u.subarray(n, 2 * n));
    const tokens = Array.from(u.subarray(2 * n), (x) => keys[Math.floor(x * size)]);
    for (let t = 1; t <= this.T; t += 2) tokens[t] = n + Math.floor(u[tokens[t - 1]] * n);
    return tokens;
  }

  match(tokens) {
    return afterSame(tokens).map((keys, t) => (tokens[t] < this.n ? keys : []));
  }
}

/** Words in lines: a capital letter ends a word, and the first that ends at or beyond a column ends
 * the line. */
class Wrap extends Task {
  vocab = ["\n", " ", ...LOWER.slice(0, this.n), ...UPPER.slice(0, this.n)];
  endsWord = (id) => id >= 2 + this.n;

  make(u) {
    const tokens = [0], ENDS = 0.25; // probability that a letter is the last of its word
    for (let t = 1, column = 0; t <= this.T; t++) {
      const ends = u[t] < ENDS, share = ends ? u[t] / ENDS : (u[t] - ENDS) / (1 - ENDS);
      tokens.push(this.endsWord(tokens[t - 1]) ? +(column < this.size)
        : 2 + Math.floor(share * this.n) + (ends ? this.n : 0));
      column = tokens[t] ? column + 1 : 0;
    }
    return tokens;
  }

  color = "probability"; // of a newline

  /** Two lines, and a third that does not end where it should. */
  opening(tokens) {
    let lines = 0;
    return tokens.slice(0, Math.floor(this.T * 3 / 4)).map((id) => (id || lines++ < 2 ? id : 1));
  }

  /** The last newline, at the end of a word. */
  match(tokens) {
    return tokens.map((id, t) =>
      (this.endsWord(id) ? [tokens.lastIndexOf(0, t)].filter((at) => at >= 0) : []));
  }
}

class Maximum extends Task {
  vocab = [...range(this.n).map(String), "="];
  words = this.vocab;
  numbers = 1 + this.size;

  make([first, ...others]) {
    const limit = 1 + Math.floor(first * this.n);
    const numbers = others.map((x) => Math.floor(x * limit));
    return [...numbers, this.n, largestOf(numbers)];
  }

  /** Each occurrence of the largest number, at =. */
  match(tokens) {
    return tokens.map((id, t) => {
      const largest = largestOf(tokens.slice(0, t).filter((other) => other < this.n));
      return id === this.n ? range(t).filter((k) => tokens[k] === largest) : [];
    });
  }
}

/** Stories about animals, each of which follows, watches or likes somebody. After "still" and the
 * animal's verb comes the last name that followed this verb. */
class Stories extends Task {
  people = "Anna Ben Eva Leo Mia Paul Sara Tom".split(" ");
  animals = "dog cat hen goat duck pig".split(" ");
  verbs = "follows watches likes fears calls trusts".split(" ");
  vocab = [..."The the still Now In end .".split(" "), ...this.people, ...this.animals, ...this.verbs];
  words = this.vocab;
  numbers = 15 + this.n + 2 * this.size;

  make(u) {
    const { n, size } = this, cast = 4, told = [], rest = u.subarray(14);
    const people = order(u.subarray(0, 8)), animals = order(u.subarray(8, 14));
    const whom = Array.from(rest.subarray(0, n), (x) => Math.floor(x * cast));
    const say = (before, i, still = "") => told.push(...[before, this.animals[animals[i]],
      still, this.verbs[animals[i]], this.people[people[whom[i]]], "."].join(" ").split(/ +/));
    for (let i = 0; i < n; i++) say("The", i);
    for (let j = 0; j < size; j++) {
      const i = Math.floor(rest[n + j] * n), change = rest[n + size + j];
      if (change >= 0.5) whom[i] = (whom[i] + 1 + Math.floor((2 * change - 1) * (cast - 1))) % cast;
      say(...(change < 0.5 ? ["The", i, "still"] : ["Now the", i]));
    }
    say("In the end the", Math.floor(rest[n + 2 * size] * n), "still");
    return told.map((word) => this.vocab.indexOf(word));
  }

  /** The token after the last occurrence of the verb, at a verb after "still". */
  match(tokens) {
    const still = this.vocab.indexOf("still");
    return tokens.map((id, t) => {
      const asks = t && tokens[t - 1] === still && this.verbs.includes(this.vocab[id]);
      const before = asks ? tokens.slice(0, t).lastIndexOf(id) : -1;
      return before < 0 ? [] : [before + 1];
    });
  }
}

/** Characters of a text, whose last tenth is held out; training sees stretches of the rest. */
class Text extends Task {
  vocab = [...new Set(this.data.text)].sort();
  idOf = new Map(this.vocab.map((char, id) => [char, id]));
  tokens = Array.from(this.data.text, (char) => this.idOf.get(char));
  end = Math.floor(0.9 * this.tokens.length);
  numbers = 1;

  make(u, heldOut) {
    const [from, to] = heldOut ? [this.end, this.tokens.length] : [0, this.end];
    const start = from + Math.floor(u[0] * (to - from - this.T));
    return this.tokens.slice(start, start + this.T + 1);
  }

  match(tokens) { return tokens.map(() => []); }

  /** By counting the tokens, or the bigrams, from 1. */
  baselines(sequences) {
    const V = this.vocab.length, { tokens, end } = this;
    const one = new Float64Array(V).fill(1), two = new Float64Array(V * V).fill(1);
    for (let t = 1; t < end; t++) {
      one[tokens[t]]++;
      two[tokens[t - 1] * V + tokens[t]]++;
    }
    const all = sum(one), rows = range(V).map((id) => sum(two.subarray(id * V, (id + 1) * V)));
    const unigram = (ids, t) => one[ids[t]] / all;
    const bigram = (ids, t) => two[ids[t - 1] * V + ids[t]] / rows[ids[t - 1]];
    return { uniform: Math.log(V), unigram: lossOf(unigram, sequences),
      bigram: lossOf(bigram, sequences) };
  }
}

export const TASKS = { repeat: Repeat, repeat_fixed: RepeatFixed, sink: Sink, markov: Markov,
  modular: Modular, flipflop: FlipFlop, brackets: Brackets, addition: Addition, recall: Recall,
  wrap: Wrap, maximum: Maximum, stories: Stories, text: Text };

/** The mean loss if `chance` is the probability of token t of some tokens, after the first. */
function lossOf(chance, sequences) {
  return mean(sequences.flatMap((tokens) =>
    tokens.slice(1).map((_, t) => -Math.log(chance(tokens, t + 1)))));
}

/** The index that a random number chooses by weights. */
function chooseBy(weights, u) {
  let [end, i] = [weights[0], 0];
  for (const place = u * sum(weights); place >= end && i < weights.length - 1;) end += weights[++i];
  return i;
}

/** The order of numbers, smallest first; of equal ones, the first comes first. */
const order = (numbers) => [...numbers.keys()].sort((a, b) => numbers[a] - numbers[b]);

/** A fixed number in (0, 1] for a natural number, by a hash of 32 bits. */
function scramble(number) {
  number++;
  for (let i = 0; i < 2; i++) number = Math.imul(number ^ (number >>> 16), 0x45d9f3b);
  return (((number ^ (number >>> 16)) >>> 0) + 1) / 2 ** 32;
}

/** The pairs (a, b) of numbers below `limit`, as a * limit + b: for training, and held out. */
function splitPairs(limit, heldOut) {
  const pairs = [[], []];
  for (let i = 0; i < limit ** 2; i++) pairs[+(scramble(i) <= heldOut)].push(i);
  return pairs;
}

function choosePair(pairs, u, limit) {
  const pair = pairs[Math.floor(u * pairs.length)];
  return [Math.floor(pair / limit), pair % limit];
}

/** For each query, the keys that follow an earlier occurrence of its token. */
const afterSame = (tokens) => tokens.map((id, q) =>
  range(q).filter((k) => tokens[k] === id).map((k) => k + 1));
