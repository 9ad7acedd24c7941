// The stages of learning: the first snapshot whose validation loss is below a baseline's, or that
// has a head with a high score. Of the baselines that a snapshot is the first below, only the
// lowest counts.

const HEADS = { previous_token: "previous-token head", induction: "induction head",
  weight_on_match: "head on the match" };

export const HIGH = 0.3;
/** From where a head's score is high; it is also twice that of uniform attention. */
export const highOf = (uniform) => Math.max(HIGH, 2 * uniform);

/** The baselines that are shown, as [[name, loss], ...]. */
export const shownOf = (baselines) => Object.entries(baselines).filter(([name], i, all) =>
  ["uniform", "in-context unigram", "bigram", "3-gram", "5-gram", all.at(-1)[0]].includes(name));

/** Return [{at, label}], where `at` is the index of a snapshot after the first. */
export function stagesOf(snapshots, baselines, { key, uniform }) {
  const stages = shownOf(baselines)
    .map(([name, loss]) => ({ label: `below ${name}`,
      at: snapshots.findIndex(({ lens_loss }) => lens_loss.at(-1) < loss) }))
    .filter(({ at }, i, all) => at !== all[i + 1]?.at);
  if (key in HEADS) {
    stages.push({ label: HEADS[key], at: snapshots.findIndex(({ scores }) =>
      scores[key].some((score) => score >= highOf(uniform))) });
  }
  return stages.filter(({ at }) => at > 0);
}
