// Attention maps: a head's scores, and pictures of them with one pixel per pair.

import { largestOf, triangle } from "../engine/numbers.js";
import { scoresOfPairs } from "../engine/kernels.js";
import { sizes } from "../run.js";
import { maskNow } from "../selection.js";
import { state } from "../state.js";
import { picture } from "./cells.js";
import { theme } from "./colors.js";

let scored = {}; // of one head: {pass, head, scores}

/** q.k / sqrt(D) of every pair, including masked pairs: T * T numbers. */
export function scoresOf(head) {
  const { pass } = state.view, { H, C, D } = sizes;
  if (scored.pass === pass && scored.head === head) return scored.scores;
  const [Q, K] = [pass.queries, pass.keys].map((each) => each[Math.floor(head / H)]);
  scored = { pass, head, scores: scoresOfPairs(Q, K, head % H, C, D) };
  return scored.scores;
}

export const largestScore = () => largestOf(scoresOf(state.head).map(Math.abs)) || 1;

/** Paint a head's map at a stage with one pixel per pair; masked pairs stay clear. */
export function paintMap(canvas, head, stage) {
  const { T, attention } = state.view.pass, { score, weight } = theme();
  const isMasked = stage === "scores" ? () => false : maskNow(head);
  const [scores, half] = stage === "weights" ? [] : [scoresOf(head), 127.5 / largestScore()];
  const colorAt = scores
    ? (q, k) => score.pixels[Math.round(127.5 + half * scores[q * T + k])]
    : (q, k) => weight.pixels[Math.round(255 * Math.sqrt(attention[head][triangle(q) + k]))];
  picture(canvas, T, T, (pixels) => {
    for (let i = 0; i < T * T; i++) {
      const [q, k] = [Math.floor(i / T), i % T];
      if (!isMasked(q, k)) pixels[i] = colorAt(q, k);
    }
  });
}
