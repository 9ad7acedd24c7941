// The scores of heads that the page can show, and the labels of heads with a high score.

import { data } from "./data.js";
import { atStep, COPIES, snapshots } from "./run.js";
import { highOf } from "./engine/stages.js";
import { number } from "./views/format.js";

const FIRST = (COPIES ? ["induction"] : ["weight_on_match", "previous_token"])
  .find((key) => data.scores.some((score) => score.key === key));

// `at(i)` has a number per head for snapshot i.
const scores = data.scores.toSorted((a, b) => (b.key === FIRST) - (a.key === FIRST))
  .map(({ key, source, formula, repeats, uniform }) => ({
    key, source, uniform,
    name: key.replaceAll("_", " ") + (repeats ? " on random strings" : ""),
    formula: repeats ? `${formula}; P = ${snapshots[0].copying.period}` : formula,
    at: (i) => snapshots[i].scores[key],
    text: (value) => number(value, 2),
  }));

const ablations = (data.ablation ? ["zero", "mean"] : []).map((kind) => ({
  key: `ablation ${kind}`,
  name: `${kind} ablation`,
  formula: `change in the loss on ${data.measured}, in nats, if ${kind === "zero" ? "zero" : "its mean"} ` +
    "replaces the head's output",
  source: `measured${atStep}`,
  at: () => data.ablation[kind],
  error: data.ablation[`${kind}_error`],
  text: (value) => number(value),
}));

export const measures = [...scores, ...ablations];

const LABELS = {
  induction: "induction", duplicate_token: "duplicate", previous_token: "previous",
  own_position: "self", first_token: "first",
};

/** The label of a head if one of these scores is high. */
export function labelOf(head, snapshot) {
  const { scores } = snapshots[snapshot];
  const known = data.scores.filter(({ key, uniform }) => key in LABELS &&
    scores[key][head] >= highOf(uniform)).map(({ key }) => key);
  return LABELS[known.sort((a, b) => scores[b][head] - scores[a][head])[0]] ?? "";
}
