"""What may change when a run is resumed, measured, or gives its weights to another."""

import dataclasses
from typing import Any

from common.errors import UserError
from configs.load import Config, to_plain
from run.checkpoint import SavedRun
from run.folder import yaml_of
from training.runtime import Machine

# What --resume may change: where and how long it computes, how often it evaluates, logs and saves;
# not what it learns. (The text may have moved; another text has another hash.)
RESUME = {
    "data.source",
    "data.hub_revision",
    "model.attention",
    "train.max_steps",
    "train.target_loss",
    "train.eval_every",
    "train.sample_tokens",
    "train.save_every",
    "train.log_every",
    "train.tensorboard",
    "train.snapshots",
    "train.snapshot_mb",
    "train.device",
    "train.precision",
    "train.threads",
    "train.compile",
}
# What --init_from and --evaluate may not change: what gives the weights their meaning...
VOCABULARY = {"data.tokenizer", "data.vocab_size"}
MODEL_MAY_CHANGE = {"model.dropout", "model.attn_dropout", "model.attention"}
# ... and, for --evaluate, which part of a text the run has never seen.
SPLITS = {"data.val_fraction", "data.test_fraction", "data.separator"}


def may_change(field: str, flag: str) -> bool:
    """Return whether --resume, --init_from or --evaluate may change a field of the config."""
    if flag == "--resume":
        return field in RESUME
    if field.startswith("model."):
        return field in MODEL_MAY_CHANGE
    return field not in VOCABULARY | (SPLITS if flag == "--evaluate" else set())


def check_changes(old: Config, new: Config, flag: str) -> None:
    """Reject changes of the config that `flag` does not allow.

    Raises:
        UserError: naming the first such field.
    """
    before, after = to_plain(old), to_plain(new)
    hint = "; --train.max_steps sets how far it trains" if flag == "--resume" else ""
    for section, values in before.items():
        for name, value in values.items():
            now, field = after[section][name], f"{section}.{name}"
            if now != value and not may_change(field, flag):
                raise UserError(f"{flag} cannot change {field} from {value} to {now}{hint}")


def check_same_text(saved: SavedRun, info: dict[str, Any]) -> None:
    """Reject another text than the run was trained on.

    Raises:
        UserError: naming where that text came from.
    """
    if not saved.trained_on(info):
        run, source = saved.path.parent, saved.header.corpus.get("source")
        raise UserError(
            f"the text is not the one that {run} was trained on, which came from {source}; to "
            f"train on another one use --init_from {run}"
        )


def notes_on_resume(saved: SavedRun, machine: Machine) -> list[str]:
    """Return what a user who resumes a run should know, and did not ask for."""
    before, after = dataclasses.asdict(saved.header.machine), dataclasses.asdict(machine)
    notes = [
        f"{name} {value} -> {after[name]}: sums round differently from here on"
        for name, value in before.items()
        if value != after[name]
    ]
    file = saved.path.parent / "config.yaml"
    if file.exists() and file.read_bytes() != yaml_of(saved.config):
        notes.append(f"{file} was edited; a run resumes as it was, and changes are given as flags")
    return notes
