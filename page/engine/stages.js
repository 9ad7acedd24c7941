// The stages of learning: the first snapshot whose validation loss is below a baseline's, or whose
// head with the highest final score, if that is at least 0.3, has half of it.

/** Return [{at, label}], where `at` is the index of a snapshot after the first. */
export function stagesOf(snapshots, baselines) {
  const stages = ["unigram", "bigram"].map((name) =>
    [`below ${name}`, ({ lens_loss }) => lens_loss.at(-1) < baselines[name]]);
  for (const key of ["previous_token", "induction"]) {
    const scores = snapshots.at(-1).scores[key], most = Math.max(...scores);
    if (most < 0.3) continue;
    stages.push([`${key.replace("_", "-")} head`,
      (snapshot) => snapshot.scores[key][scores.indexOf(most)] >= most / 2]);
  }
  return stages.map(([label, reached]) => ({ at: snapshots.findIndex(reached), label }))
    .filter(({ at }) => at > 0);
}
