"""What may change when a run is resumed, measured, or gives its weights to another."""

from collections.abc import Set
from typing import Any

from common.errors import UserError
from configs.load import SECTIONS, Config, fields_of, to_plain
from run.checkpoint import SavedRun
from run.folder import yaml_of
from training.optim import get_lr_scale
from training.runtime import Machine

# What --resume may change: where it computes, how long, how often it evaluates, logs and saves; not
# what it learns. (Where its text lies may change too; another text has another hash.)
RESUME: dict[str, Set[str]] = {
    "data": {"source", "hub_revision"},
    "model": {"attention"},
    "train": {
        *("max_steps", "patience", "target_loss"),
        *("eval_every", "sample_tokens", "save_every", "log_every", "tensorboard"),
        *("snapshots", "snapshot_mb"),
        *("device", "precision", "threads", "compile"),
    },
}
# What --init_from may change: all but what gives the weights their meaning.
INIT_FROM: dict[str, Set[str]] = {
    "data": fields_of(SECTIONS["data"]).keys() - {"tokenizer", "vocab_size"},
    "model": {"dropout", "attn_dropout", "attention"},
    "train": fields_of(SECTIONS["train"]).keys(),
}
# What --evaluate may not change besides: which part of a text a run has never seen.
SPLITS = {"val_fraction", "test_fraction", "separator"}
EVALUATE = INIT_FROM | {"data": INIT_FROM["data"] - SPLITS}
MAY_CHANGE: dict[str, dict[str, Set[str]]] = {
    "--resume": RESUME,
    "--init_from": INIT_FROM,
    "--evaluate": EVALUATE,
}
WHY = {
    "--resume": "a resumed run goes on learning the same; use --init_from, or start a new run",
    "--init_from": "the weights fit no other value; train a new run without --init_from",
    "--evaluate": "the weights were trained with that value",
}
WHY_NOT_MINUTES = "--train.max_steps sets how far to train, counted from the beginning"


def check_changes(old: Config, new: Config, flag: str) -> None:
    """Refuse to --resume, --init_from or --evaluate with fields changed that may not be.

    Raises:
        UserError: naming the first such field.
    """
    before, after = to_plain(old), to_plain(new)
    for section, values in before.items():
        for name, value in values.items():
            now = after[section][name]
            if now != value and name not in MAY_CHANGE[flag][section]:
                why = WHY_NOT_MINUTES if name == "minutes" else WHY[flag]
                raise UserError(
                    f"{flag} cannot change {section}.{name} from {value} to {now}: {why}"
                )


def check_same_text(saved: SavedRun, info: dict[str, Any]) -> None:
    """Refuse to resume on another text than the run was trained on.

    Raises:
        UserError: naming where the text came from.
    """
    if not saved.trained_on(info):
        run = saved.path.parent
        raise UserError(
            f"the text is not the one that {run} was trained on, which came from "
            f"{saved.header.corpus.get('source')}; to train on another one use --init_from {run}"
        )


def notes_on_resume(saved: SavedRun, new: Config, machine: Machine) -> list[str]:
    """What a user should know of changes that --resume allows."""
    notes, old, before = [], saved.config, saved.header.machine
    file = saved.path.parent / "config.yaml"
    if file.exists() and file.read_bytes() != yaml_of(old):
        notes.append(f"{file} was edited; a run resumes as it was, and changes are given as flags")
    if new.train.max_steps != old.train.max_steps:
        was, now = (get_lr_scale(saved.header.state.step, c.train) for c in (old, new))
        notes.append(
            f"max_steps {old.train.max_steps} -> {new.train.max_steps}: the learning rates follow "
            f"the new schedule, from here at {now:.3g} of their peaks instead of {was:.3g}"
        )
    rounding = {
        **{name: (getattr(before, name), getattr(machine, name)) for name in fields_of(Machine)},
        "compile": (old.train.compile, new.train.compile),
        "attention": (old.model.attention, new.model.attention),
    }
    for name, (then, now_) in rounding.items():
        if then != now_:
            notes.append(f"{name} {then} -> {now_}: sums round differently from here on")
    if before.device != machine.device:
        notes.append("dropout draws from a generator of the new device, which starts anew")
    return notes
