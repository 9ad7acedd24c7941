"""Try a folder of changes while you sleep: which of them lower the loss in the same time?

python -m benchmarks.overnight --trials night --train.max_steps 640
python -m benchmarks.overnight configs/shakespeare_1min.yaml --trials night

Each NAME.yaml in the folder has the config fields that change, each NAME.patch is a diff of git,
which is applied to a copy of the code. A change trains for as many steps as fit into the time of
the base's steps, with the base's seeds, until `verdict` decides. Then a row is added to
docs/trials.csv; what has a row is not tried again. The losses are those of the last weights on the
first half of the validation split. docs/overnight.md explains the rule.
"""

import csv
import functools
import itertools
import json
import os
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass

from benchmarks import common as frame
from benchmarks.recipe import mean_and_deviation
from common.errors import UserError, command
from configs.config import STRICT, Config
from configs.load import read_config, read_yaml
from training.folder import read_metrics

MEMORY = frame.ROOT / "docs/trials.csv"
GAIN = 0.008  # by which a change must lower the loss
BURSTS = 5  # by which base and change are timed, alternating
BURST = 30  # steps
# Other programs that use the cores change the wall-clock time of a step, its CPU time much less.
CPU_TIME = """
import runpy, sys, time
time.perf_counter = time.process_time
sys.argv = ["train.py", *sys.argv[1:]]
runpy.run_path("train.py", run_name="__main__")
"""
# Only the last weights are evaluated, by benchmarks.recipe.
ONLY_STEPS = ["--train.eval_tokens=1", "--train.sample_tokens=0", "--train.snapshots=0"]


@dataclass(frozen=True, config=STRICT)
class Options:
    """Try changes, each against the base in the same time"""

    trials: str = "night"
    """Folder of the changes: NAME.yaml has the fields that change, NAME.patch is a diff of git."""

    setting: str = ""
    """Name of the base in the table of trials; if omitted, that of the config."""

    seeds: Annotated[int, Field(ge=2)] = 3
    """Number of seeds of a change that is not clearly worse, from --train.seed on."""

    again: bool = False
    """Also try the changes that the table has for this setting."""


def verdict(differences: Sequence[float], seeds: int) -> str | None:
    """Return whether a change is kept, "yes" or "no", or None if another seed is needed. A change
    that is worse is dropped early; one seed must show it by more than seeds differ.

    Args:
        differences: the loss with the change minus the base's, of each seed so far.
    """
    if differences and statistics.mean(differences) > (GAIN if len(differences) == 1 else 0):
        return "no"
    if len(differences) < seeds:
        return None
    gain = -statistics.mean(differences)
    return "yes" if gain >= GAIN and gain > statistics.stdev(differences) else "no"


def kept_by_chance(spread: float, seeds: int, error: float = 0.0) -> float:
    """Return how often the rule keeps a change without effect, if paired differences have this
    standard deviation, and what all of them share, because its number of steps is measured, has
    this one."""
    random = np.random.default_rng(0)
    nights = random.normal(0, spread, (10_000, seeds)) + random.normal(0, error, (10_000, 1))
    return statistics.mean(
        next(filter(None, (verdict(night[:n], seeds) for n in range(1, seeds + 1)))) == "yes"
        for night in nights.tolist()
    )


class Trial(NamedTuple):
    """The base, or a change of it."""

    name: str
    tree: Path
    """A copy of the code, with the patch."""

    words: list[str]
    """The arguments of train.py."""

    change: list[str]
    """Further flags."""

    def train(self, steps: int, seed: int) -> frame.Row:
        """Train for a number of steps, and return the row of benchmarks.recipe."""
        last = [*ONLY_STEPS, f"--train.max_steps={steps}", f"--train.seed={seed}", "--seeds=1"]
        recipe = ["-m", "benchmarks.recipe", *self.words, *self.change, *last]
        _, printed = frame.run_command(recipe, self.tree)
        (row,) = json.loads(printed.splitlines()[-1])["rows"]
        return row

    def burst(self) -> list[float]:
        """Train a few steps; return the seconds of CPU time of each but the first."""
        short = [*ONLY_STEPS, f"--train.max_steps={BURST}", "--train.log_every=1", "--run=burst"]
        words = [*self.words, *self.change, *short]
        shutil.rmtree(self.tree / "runs", ignore_errors=True)  # of the last burst
        frame.run_command(["-c", CPU_TIME, *words], self.tree)
        metrics = read_metrics(self.tree / "runs/burst")
        seconds = [line["seconds"] for line in metrics if "grad_norm" in line]
        return [b - a for a, b in itertools.pairwise(seconds)]


def copy_code(tree: Path) -> None:
    """Copy the code, without runs, texts and the history."""
    shutil.copytree(frame.ROOT, tree, ignore=shutil.ignore_patterns(".*", "runs", "cache"))


def read_trials(folder: Path, base: Trial, config: Config) -> list[Trial]:
    """Return the changes in a folder: of the base's config, or a patch, which is applied to a copy
    of the base's code.

    Raises:
        UserError: for a patch that does not apply, and for a file that is not a config.
    """
    trials = []
    for path in sorted(folder.iterdir()):
        name = path.stem.replace("_", " ")
        if path.suffix == ".patch":
            tree = base.tree.with_name(path.name)
            shutil.copytree(base.tree, tree)
            # In a repository of its own; inside another one, git would skip the files in silence.
            for words in (["init", "--quiet"], ["apply", str(path.resolve())]):
                done = subprocess.run(["git", *words], cwd=tree, capture_output=True, text=True)
                if done.returncode:
                    raise UserError(f"{path} does not apply: {' '.join(done.stderr.split())}")
            trials.append(base._replace(name=name, tree=tree))
        elif path.suffix == ".yaml":
            read_config({}, str(path), config)
            values = read_yaml(str(path))
            if "source" in values.get("data", {}):
                values["data"]["source"] = frame.absolute(values["data"]["source"])
            change = frame.flags_of(values)
            changed = {flag.split("=")[0] for flag in change}  # a list replaces the base's
            words = [word for word in base.words if word.split("=")[0] not in changed]
            trials.append(base._replace(name=name, words=words, change=change))
    return trials


def fastest(bursts: Iterable[Sequence[float]]) -> float:
    """Return the mean seconds of a step, each the fastest of all bursts: a program on the other
    half of a core can double the CPU time of a step, and nothing can make it shorter."""
    return statistics.mean(map(min, zip(*bursts, strict=True)))


def same_time(base: Trial, trial: Trial, steps: int) -> tuple[float, float]:
    """Return how many steps of a change take as long as these of the base, and the standard error
    of this number, from those without one pair of bursts each (the jackknife)."""
    pairs = [(base.burst(), trial.burst()) for _ in range(BURSTS)]
    chosen = [pairs, *itertools.combinations(pairs, BURSTS - 1)]
    both = [[*map(fastest, zip(*some, strict=True))] for some in chosen]
    fitting, *others = (steps * of_base / of_trial for of_base, of_trial in both)
    return fitting, statistics.pstdev(others) * (BURSTS - 1) ** 0.5


def compare(
    trial: Trial, steps: int, train_base: Callable[[int], frame.Row], seed: int, seeds: int
) -> frame.Row:
    """Train a change with one seed after another until `verdict` decides.

    Args:
        train_base: returns the base's row of a seed.
        seed: the first.
    """
    row: frame.Row = {"by": trial.name, "kept": None, "steps": steps}
    row |= {key: [] for key in ("loss", "base_loss", "difference", "second_half")}
    while row["kept"] is None:
        of_base, found = (
            {key: row[key][0] for key in ("first_half", "second_half")}
            for row in (train_base(seed), trial.train(steps, seed))
        )
        row["loss"].append(found["first_half"])
        row["base_loss"].append(of_base["first_half"])
        row["difference"].append(found["first_half"] - of_base["first_half"])
        row["second_half"].append(found["second_half"] - of_base["second_half"])
        losses = f"{found['first_half']:.4f} instead of {of_base['first_half']:.4f}"
        print(f"{trial.name}, seed {seed}: {losses}", file=sys.stderr)
        row["kept"], seed = verdict(row["difference"], seeds), seed + 1
    return row


def remember(setting: str, trial: Trial, row: frame.Row, steps: int) -> None:
    """Add a row to the table of trials, in one write."""
    flags, time = shlex.join(trial.change), f"{row['steps']:,} steps instead of {steps:,}"
    losses = [", ".join(f"{loss:.4f}" for loss in row[key]) for key in ("loss", "base_loss")]
    with MEMORY.open("a", newline="", encoding="utf-8") as table:
        csv.writer(table, lineterminator="\n").writerow(
            [setting, trial.name, flags, len(row["loss"]), *losses, time, row["kept"]]
        )


def report(rows: list[frame.Row], seeds: int) -> None:
    """Print what was decided, and how often chance decides."""
    if rows:
        frame.report("overnight", rows, mean_and_deviation)
    variances = [statistics.variance(r["difference"]) for r in rows if len(r["difference"]) > 1]
    if variances:
        spread = statistics.mean(variances) ** 0.5
        error = statistics.mean(row["error"] ** 2 for row in rows) ** 0.5
        chance = kept_by_chance(spread, seeds, error)
        print(
            f"paired differences have a standard deviation of {spread:.4f}, and the error of the "
            f"measured steps changes them by {error:.4f}, with which the rule keeps {chance:.1%} "
            f"of changes without effect"
        )


@command
def main(argv: list[str]) -> int:
    """Try each change that the table does not have."""
    options, file, config, flags = frame.read_training(Options, argv)
    setting, seed = options.setting or Path(file).stem or "the default", config.train.seed
    with tempfile.TemporaryDirectory() as scratch:
        tree = Path(scratch, "base")  # a copy, which does not change while you work
        copy_code(tree)
        file = file.removeprefix(f"{frame.ROOT}{os.sep}")  # of the copy that trains
        # With one thread, CPU time is the time that training needs.
        base = Trial("base", tree, [*[file] * bool(file), *flags, "--train.threads=1"], [])
        trials = read_trials(Path(options.trials), base, config)
        steps = config.train.max_steps
        if steps is None:
            seconds = fastest(base.burst() for _ in range(BURSTS))
            steps = int(60 * config.train.minutes / seconds)
        train_base, fewer = functools.cache(base.train), max(1, steps * 3 // 4)
        rows: list[frame.Row] = []
        try:
            for trial in trials:
                with MEMORY.open(encoding="utf-8") as table:
                    known = [(row["setting"], row["change"]) for row in csv.DictReader(table)]
                if (setting, trial.name) in known and not options.again:
                    print(f"{trial.name}: tried before; --again tries it again", file=sys.stderr)
                    continue
                try:
                    fitting, error = same_time(base, trial, steps)
                    about = f"{fitting:.0f} ± {error:.1f} steps instead of {steps}"
                    print(f"{trial.name}: {about}", file=sys.stderr)
                    # What the base loses with fewer steps says what that error changes.
                    less, whole = (train_base(n, seed)["first_half"][0] for n in (fewer, steps))
                    train = functools.partial(train_base, steps)
                    rows.append(compare(trial, round(fitting), train, seed, options.seeds))
                    rows[-1]["error"] = error * (less - whole) / max(1, steps - fewer)
                except UserError as error:  # the night goes on
                    print(f"{trial.name}: {error}", file=sys.stderr)
                else:
                    remember(setting, trial, rows[-1], steps)
        finally:  # also after Ctrl-C, in the morning
            report(rows, options.seeds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
