"""What may change when a run is resumed, measured, or gives its weights to another."""

import copy
import dataclasses
from pathlib import Path
from typing import Any

import pytest

from common.errors import UserError
from configs.load import SECTIONS, Config, fields_of, to_plain
from data.tokenizer import CharTokenizer
from run.checkpoint import SavedRun
from run.folder import save_config
from run.resume import check_changes, check_same_text, notes_on_resume
from tests.run.test_checkpoint import HEADER
from training.config import TrainConfig
from training.runtime import Machine

CORPUS = {"source": "a.txt", "sha256": "1" * 64, "characters": 99, "tokens": 99, "start_token": 0}

# What each flag lets change. Where a field is missing here, somebody has to decide: it belongs to
# one of the sets, or it is rejected.
RESUME = """data.source data.hub_revision model.attention
train.max_steps train.eval_every train.patience train.target_loss train.sample_tokens
train.save_every train.snapshots train.snapshot_mb train.log_every train.tensorboard train.device
train.precision train.threads train.compile"""
TRAIN = " ".join(f"train.{name}" for name in fields_of(TrainConfig))
MEASURE = f"""{TRAIN} data.source data.hub_config data.hub_split data.hub_column
data.hub_revision data.repeat_vocab data.repeat_min_period data.repeat_max_period
model.dropout model.attn_dropout model.attention"""
INIT = MEASURE + " data.val_fraction data.test_fraction data.separator"


@pytest.mark.parametrize(
    ("flag", "free"), [("--resume", RESUME), ("--evaluate", MEASURE), ("--init_from", INIT)]
)
def test_every_field_may_change_or_may_not(flag: str, free: str) -> None:
    old = Config()
    check_changes(old, copy.deepcopy(old), flag)
    changed: set[str] = set()
    for section, kind in SECTIONS.items():
        for name in fields_of(kind):
            new = copy.deepcopy(old)
            object.__setattr__(getattr(new, section), name, "something else")
            try:
                check_changes(old, new, flag)
                changed.add(f"{section}.{name}")
            except UserError as error:
                before = to_plain(old)[section][name]
                named = f"{flag} cannot change {section}.{name} from {before} to something else: "
                assert str(error).startswith(named)
    assert changed == set(free.split())


def saved(corpus: dict[str, Any] = CORPUS, **changes: Any) -> SavedRun:
    """A run, on another machine if that is changed."""
    machine = dataclasses.replace(HEADER.machine, **changes)
    header = dataclasses.replace(HEADER, corpus=corpus, machine=machine)
    return SavedRun(Path("runs/a/last.safetensors"), header, CharTokenizer("abc"), {})


def test_a_text_is_the_same_by_what_is_in_it() -> None:
    """And not by its length, or where it lies."""
    check_same_text(saved(), CORPUS | {"source": "elsewhere.txt"})
    repeat = {"source": "repeat", "start_token": 0}
    check_same_text(saved(repeat), repeat)
    for other in (CORPUS | {"sha256": "1" * 63 + "2"}, repeat):
        with pytest.raises(UserError, match=r"runs/a was trained on, which came from a.txt; to"):
            check_same_text(saved(), other)


def test_what_nobody_asked_to_change_is_noted(workplace: Path) -> None:
    """What rounds sums differently, each by itself, and an edited file that is not read."""
    assert notes_on_resume(saved(), HEADER.machine) == []
    others: dict[str, Any] = {"processor": "Z80", "threads": 9, "processes": 3}
    others |= {"precision": "bfloat16", "torch": "3.0", "device": "mps"}
    assert others.keys() == fields_of(Machine).keys()
    for name, other in others.items():
        now = getattr(HEADER.machine, name)
        line = f"{name} {other} -> {now}: sums round differently from here on"
        assert notes_on_resume(saved(**{name: other}), HEADER.machine) == [line]
    Path("runs/a").mkdir(parents=True)
    save_config(Path("runs/a"), HEADER.config)
    assert notes_on_resume(saved(), HEADER.machine) == []
    Path("runs/a/config.yaml").write_text("train: {max_steps: 3}\n")
    (edited,) = notes_on_resume(saved(), HEADER.machine)
    assert edited.startswith("runs/a/config.yaml was edited; a run resumes as it was")
