// What is measured of a model while it trains, on sequences of its task: losses, accuracy, and the
// scores of heads that lens/metrics.py defines.

import { Engine } from "./engine.js";
import { clamp, indexOfLargest, mean, range, triangle } from "./numbers.js";
import { logProbabilities } from "./pass.js";
import { TASKS } from "./tasks.js";

const TOKENS = 2048; // approximately, that a measurement reads
const [HELD_OUT, TRAINED, REPEATS] = [-2, -3, -4]; // seeds that no batch has

// A score is the mean over queries q of the weight on the key `at(q, P)`, where P is the length of r.
const SCORES = [
  { key: "induction", repeats: true, source: "Olsson et al. 2022", at: (q, P) => q - P + 1,
    formula: "on [r, r]: A[q, q-P+1], mean over q = P .. 2P-1" },
  { key: "previous_token", source: "Olsson et al. 2022", at: (q) => q - 1,
    formula: "A[q, q-1], mean over q >= 1" },
  { key: "first_token", source: "Gu et al. 2024", at: () => 0,
    formula: "A[q, 0], mean over q >= 1" },
  { key: "own_position", source: "Clark et al. 2019", at: (q) => q,
    formula: "A[q, q], mean over q >= 1" },
  { key: "duplicate_token", repeats: true, source: "Wang et al. 2022", at: (q, P) => q - P,
    formula: "on [r, r]: A[q, q-P], mean over q = P .. 2P-1" },
];
const MATCH = { key: "weight_on_match", source: "Olsson et al. 2022",
  formula: "sum of A[q, k] over the keys k that match q, mean over q with such keys" };

export class Measure {
  constructor(task, config, shapes) {
    const { B, V } = this.engine = new Engine(config, shapes);
    const count = clamp(Math.round(TOKENS / B), 16, 256);
    this.task = task;
    this.sequences = task.draw(HELD_OUT, count, true);
    this.trained = task.pairs ? task.draw(TRAINED, count) : []; // others hold nothing out
    const usual = task.periods ? Math.floor(mean(task.periods)) : 32;
    const P = this.period = Math.min(usual, V, Math.floor(B / 2));
    const strings = { task_kinds: V, task_length: P };
    this.repeats = P < 2 ? [] : new TASKS.repeat_fixed(strings, 2 * P - 1).draw(REPEATS, 8);
    const scores = SCORES.filter(({ repeats }) => !repeats || P > 1).map(({ at, ...score }) => {
      const [sequences, from, T] = score.repeats
        ? [this.repeats, P, 2 * P] : [this.sequences, 1, B];
      const match = range(T).map((q) => (q < from ? [] : [at(q, P)]));
      return { ...score, matches: sequences.map(() => match) };
    });
    const matches = this.sequences.map((tokens) => task.match(tokens.slice(0, B)));
    if (matches.flat(2).length) scores.push({ ...MATCH, matches });
    /** Of each score, for each sequence: the places of the weights, and what divides their sum. */
    this.scores = scores.map(({ matches, ...score }) => {
      const lists = matches.map((match) => [...match.entries()].filter(([, keys]) => keys.length));
      const some = lists.filter((list) => list.length);
      const uniform =
        mean(some.map((list) => mean(list.map(([q, keys]) => keys.length / (q + 1)))));
      return { ...score, uniform, found: lists.map((list) => ({ count: list.length * some.length,
        places: list.flatMap(([q, keys]) => keys.map((k) => triangle(q) + k)) })) };
    });
  }

  /** Yield between sequences, and at the end what a snapshot of the page has. */
  *of(weights) {
    const { engine, engine: { L, H, C, V, B, at, pairs }, period } = this;
    engine.load({}, (room) => room.set(weights));
    const scores = Object.fromEntries(this.scores.map(({ key }) => [key, new Array(L * H).fill(0)]));
    const headMeans = new Float32Array(L * C);

    /** Run the first T tokens, and return the log probabilities of each position. */
    const read = (sequence, T) => {
      engine.run(sequence.slice(0, T));
      const logP = logProbabilities(engine.take("logits", V), V);
      return range(T).map((t) => logP.subarray(t * V, (t + 1) * V));
    };
    const lossOf = (rows, sequence, from, to) =>
      mean(range(to).slice(from).map((t) => -rows[t][sequence[t + 1]]));
    const rightOf = (rows, sequence) => this.task.answers(sequence).flatMap((is, t) =>
      (is ? [Number(indexOfLargest(rows[t - 1]) === sequence[t])] : []));
    const addScores = (repeats, i) => {
      for (const { key, found } of this.scores.filter((each) => !each.repeats === !repeats)) {
        const { places, count } = found[i];
        if (count) for (let head = 0; head < L * H; head++) {
          const from = at[`weights${Math.floor(head / H)}`] + (head % H) * pairs;
          let weight = 0;
          for (const place of places) weight += engine.memory[from + place];
          scores[key][head] += weight / count;
        }
      }
    };

    const losses = [], [right, known] = [[], []], [first, second] = [[], []];
    for (const [i, sequence] of this.sequences.entries()) {
      const rows = read(sequence, B);
      losses.push(lossOf(rows, sequence, 0, B));
      right.push(...rightOf(rows, sequence));
      addScores(false, i);
      for (let l = 0; l < L; l++) {
        for (let j = 0; j < B * C; j++) {
          headMeans[l * C + j % C] += engine.memory[at[`z${l}`] + j] / B / this.sequences.length;
        }
      }
      yield;
    }
    for (const sequence of this.trained) {
      known.push(...rightOf(read(sequence, B), sequence));
      yield;
    }
    for (const [i, sequence] of this.repeats.entries()) {
      const rows = read(sequence, 2 * period);
      first.push(lossOf(rows, sequence, 0, period - 1));
      second.push(lossOf(rows, sequence, period, 2 * period - 1));
      addScores(true, i);
      yield;
    }
    const copying = first.length ? { period, first: mean(first), second: mean(second) } : null;
    const lens_loss = [...new Array(L).fill(NaN), mean(losses)];
    yield { scores, copying, headMeans, lens_loss, accuracy: [mean(right), mean(known)] };
  }
}
