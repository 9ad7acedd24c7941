"""What may change when a run is resumed, measured, or gives its weights to another."""

import copy
import dataclasses
from pathlib import Path
from typing import Any

import pytest

from common.errors import UserError
from configs.load import Config, fields_of
from data.tokenizer import CharTokenizer
from run.checkpoint import SavedRun
from run.folder import save_config
from run.resume import check_changes, check_same_text, notes_on_resume
from tests.run.test_checkpoint import HEADER
from training.runtime import Machine

CORPUS = {"source": "a.txt", "sha256": "1" * 64, "characters": 99, "tokens": 99, "start_token": 0}

# One field of each kind, and the flags that may change it.
CHANGES: list[tuple[str, str]] = [
    ("data.source", "--resume --init_from --evaluate"),
    ("data.vocab_size", ""),
    ("data.val_fraction", "--init_from"),
    ("data.separator", "--init_from"),
    ("model.n_layer", ""),
    ("model.dropout", "--init_from --evaluate"),
    ("model.attention", "--resume --init_from --evaluate"),
    ("train.seed", "--init_from --evaluate"),
    ("train.learning_rate", "--init_from --evaluate"),
    ("train.minutes", "--init_from --evaluate"),
    ("train.max_steps", "--resume --init_from --evaluate"),
    ("train.eval_every", "--resume --init_from --evaluate"),
]


@pytest.mark.parametrize(("field", "flags"), CHANGES)
def test_what_gives_a_run_its_meaning_stays(field: str, flags: str) -> None:
    old, new = Config(), copy.deepcopy(Config())
    section, name = field.split(".")
    before = getattr(getattr(old, section), name)
    object.__setattr__(getattr(new, section), name, "other")
    for flag in ("--resume", "--init_from", "--evaluate"):
        check_changes(old, copy.deepcopy(old), flag)
        try:
            check_changes(old, new, flag)
            assert flag in flags
        except UserError as error:
            assert flag not in flags
            assert str(error).startswith(f"{flag} cannot change {field} from {before} to other")


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
