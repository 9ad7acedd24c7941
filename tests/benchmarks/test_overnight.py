"""The rule of benchmarks.overnight on made-up losses; what it trains, remembers, and rejects."""

import csv
from difflib import unified_diff
from pathlib import Path
from typing import Any

import pytest

import train
from benchmarks import common, overnight, recipe
from benchmarks.overnight import Trial, main, verdict
from common.errors import UserError
from configs.config import Config
from tests.conftest import DEBUG, ROOT
from training import optim

BEFORE = (ROOT / "training/optim.py").read_text("utf-8").splitlines(keepends=True)
AFTER = [line.replace("MOMENTUM = 0.95", "MOMENTUM = 0.5") for line in BEFORE]
PATCH = "".join(unified_diff(BEFORE, AFTER, "a/training/optim.py", "b/training/optim.py"))


def test_rule() -> None:
    assert verdict([], 3) is None
    assert verdict([0.009], 3) == "no"
    assert verdict([0.007], 3) is None
    assert verdict([-0.02, 0.01], 3) is None
    assert verdict([-0.01, 0.02], 3) == "no"
    assert verdict([-0.010, -0.012, -0.011], 3) == "yes"
    assert verdict([-0.007, -0.007, -0.007], 3) == "no"  # too little
    assert verdict([-0.040, -0.001, 0.001], 3) == "no"  # within the spread


@pytest.fixture
def night(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the folder of changes. The base's loss is the seed; a change to a momentum of 0.5
    lowers it by 0.1 and takes twice as long, a change of the weight decay raises it by 1."""
    memory = workplace / "trials.csv"
    memory.write_text("setting,change,flags,seeds,loss,base loss,time,kept\nold,a b,,1,2,2,,no\n")
    monkeypatch.setattr(overnight, "MEMORY", memory)

    def is_patched(trial: Trial) -> bool:
        return "MOMENTUM = 0.5 " in (trial.tree / "training/optim.py").read_text("utf-8")

    def train(trial: Trial, steps: int, seed: int) -> common.Row:
        if "--train.beta2=0.5" in trial.change:
            raise UserError("loss nan")
        worse = ("--train.weight_decay=9" in trial.change) - 0.1 * is_patched(trial)
        assert trial.words == ["configs/debug.yaml", "--train.max_steps=80", "--train.threads=1"]
        assert steps in ([40] if is_patched(trial) else [80, 60])
        worse += 0.25 * (steps == 60)
        return {"first_half": [seed + worse], "second_half": [2 * (seed + worse)]}

    def burst(trial: Trial) -> list[float]:
        return [(1 + is_patched(trial)) * second for second in (2.0, 4.0, 3.0)]

    monkeypatch.setattr(Trial, "burst", burst)
    monkeypatch.setattr(Trial, "train", train)
    monkeypatch.setattr(common, "describe_machine", dict)
    monkeypatch.setattr(common, "in_fresh_process", lambda function, *args: function(*args))
    folder = workplace / "night"
    folder.mkdir()
    return folder


FLAGS = [DEBUG, "--train.max_steps=80", "--seeds=2"]


def rows() -> list[list[str]]:
    with overnight.MEMORY.open() as table:
        return [*csv.reader(table)][2:]


def test_each_change_is_tried_once_and_the_tree_is_untouched(
    night: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One that fails does not end the night."""
    (night / "a.yaml").write_text("train: {beta2: 0.5}")
    (night / "a_b.patch").write_text(PATCH)
    (night / "c.yaml").write_text("train: {weight_decay: 9}")
    (night / "notes.txt").write_text("not a change")
    assert main(FLAGS) == 0
    assert "a: loss nan\n" in capsys.readouterr().err
    assert (ROOT / "training/optim.py").read_text("utf-8") == "".join(BEFORE)
    losses = ["1336.9000, 1337.9000", "1337.0000, 1338.0000"]
    patched = ["debug", "a b", "", "2", *losses, "40 steps instead of 80", "yes"]
    flag = "--train.weight_decay=9"
    config = ["debug", "c", flag, "1", "1338.0000", "1337.0000", "80 steps instead of 80", "no"]
    assert rows() == [patched, config]
    assert main(FLAGS) == 0
    assert rows() == [patched, config]
    assert main([*FLAGS, "--setting=old"]) == 0  # which has a b, and not c
    assert rows()[2:] == [["old", *config[1:]]]


@pytest.mark.slow
def test_patched_copy_trains_with_its_own_code(
    workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As this process does with the same change, and not as it does without."""
    (workplace / "t.txt").write_text("to be or not to be " * 300 + "not " * 75)
    (workplace / "a.patch").write_text(PATCH)
    overnight.copy_code(tree := workplace / "code" / "base")
    frame = tree / "benchmarks/common.py"
    measure = "in_fresh_process(describe_machine)"  # takes as long as the training
    frame.write_text(frame.read_text("utf-8").replace(measure, "{}"), "utf-8")
    words = [DEBUG, f"--data.source={workplace / 't.txt'}"]
    (trial,) = overnight.read_trials(workplace, Trial("base", tree, words, []), Config())
    row, losses = trial.train(3, 5), []
    for momentum in (0.5, 0.95):
        monkeypatch.setattr(optim, "MOMENTUM", momentum)
        run = f"--run={momentum}"
        assert train.main([*words, "--train.max_steps=3", "--train.seed=5", run]) == 0
        losses.append(recipe.halves(Path(f"runs/{momentum}"))["first_half"])
    assert row["first_half"] == losses[:1] != losses[1:]
    failed = trial.tree / "runs/burst/last.safetensors"  # of another burst
    failed.parent.mkdir(parents=True)
    failed.touch()
    assert len(steps := trial.burst()) == overnight.BURST - 1 and min(steps) > 0
