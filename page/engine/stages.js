// The stages of learning: the first snapshot whose validation loss is below a baseline's, or whose
// head with the highest final score, if that is at least 0.3, has half of it. Of the baselines that
// a snapshot is the first below, only the lowest counts.

/** The baselines that are shown, as [[name, loss], ...]. */
export const shownOf = (baselines) => Object.entries(baselines).filter(([name], i, all) =>
  ["uniform", "in-context unigram", "bigram", "3-gram", "5-gram", all.at(-1)[0]].includes(name));

/** Return [{at, label}], where `at` is the index of a snapshot after the first. */
export function stagesOf(snapshots, baselines) {
  const stages = shownOf(baselines)
    .map(([name, loss]) => ({ label: `below ${name}`,
      at: snapshots.findIndex(({ lens_loss }) => lens_loss.at(-1) < loss) }))
    .filter(({ at }, i, all) => at !== all[i + 1]?.at);
  const kinds = { previous_token: "previous-token head", induction: "induction head",
    weight_on_match: "head on the match" };
  for (const [key, label] of Object.entries(kinds)) {
    const scores = snapshots.at(-1).scores[key] ?? [], most = Math.max(...scores);
    if (most < 0.3) continue;
    stages.push({ label, at: snapshots.findIndex((snapshot) =>
      snapshot.scores[key][scores.indexOf(most)] >= most / 2) });
  }
  return stages.filter(({ at }) => at > 0);
}
