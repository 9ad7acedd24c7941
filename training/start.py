"""What a run starts from: a config alone, its own checkpoint, or the weights of another run."""

import dataclasses
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, NamedTuple

from common.errors import UserError, printable, shell_word
from configs.config import Config, TrainConfig
from configs.load import Values, read_config, read_yaml
from data.batches import Batches, open_batches
from data.corpus import Corpus
from data.sources import TABLES, Problem, find_source, with_fixes
from data.tasks import SOURCES, is_task
from model.gpt import GPT
from training.checkpoint import SavedRun, open_run
from training.machine import Machine, Processes, prepare_machine
from training.optim import Optimizer
from training.state import TrainState

# How to fix a text with the flags of training
FIXES: dict[Problem, str] = {
    "absent": f"--data.source takes {SOURCES}",
    "changed": "if it is elsewhere, give --data.source; if it has changed, give --data.source with "
    "--init_from instead of --resume",
    "encoding": "convert it, or use --data.tokenizer byte",
    "column": "pass one of them as --data.column",
    "size": "use a longer text, a larger --data.val_fraction or, in a new run, a smaller "
    "--model.block_size or --data.vocab_size",
}


class Start(NamedTuple):
    """What a run starts from."""

    config: Config
    state: TrainState
    machine: Machine
    batches: Batches

    restore: Callable[[GPT, Optimizer], None]
    """Copies what was saved into the model and the optimizer."""

    name: str
    """The beginning of a new run's name."""

    weights: str = ""
    """The origin of the weights, in lines of config.yaml."""

    notes: tuple[str, ...] = ()
    """Lines to print."""


@with_fixes(FIXES)
def start_new(file: str | None, values: Values, processes: Processes) -> Start:
    """Start a run from the config."""
    config = read_flags(values, file)
    machine = prepare_machine(config.train, processes)
    batches = open_batches(config.data, config.model.block_size, config.train.seed)
    name = Path(file).stem if file else "default"
    return Start(config, TrainState(), machine, batches, lambda model, optimizer: None, name)


@with_fixes(FIXES)
def start_from(saved: SavedRun, file: str | None, values: Values, processes: Processes) -> Start:
    """Start a run from the weights of another one, which are evaluated before the first step."""
    config = change_config(saved, "--init_from", file, values)
    machine = prepare_machine(config.train, processes)
    batches = open_batches(
        config.data,
        config.model.block_size,
        config.train.seed,
        saved.tokenizer,
        extend=True,
        saved=saved.header.corpus,
        is_named="source" in given(file, values, "data"),
    )
    return Start(
        config,
        TrainState(last_eval_step=-1),
        machine,
        batches,
        lambda model, optimizer: saved.restore(model),
        Path(file).stem if file else f"from-{saved.path.parent.name}",
        saved.origin + saved.new_characters(batches.tokenizer),
    )


@with_fixes(FIXES)
def start_again(saved: SavedRun, file: str | None, values: Values, processes: Processes) -> Start:
    """Continue a run from its last checkpoint. If its learning rates have begun to decay and its
    end changes, continue from the checkpoint before that, as if this end had been planned."""
    config = change_config(saved, "--resume", file, values)
    plan, planned, state = config.train, saved.config.train, saved.header.state
    folder, notes = saved.path.parent, list[str]()
    if state.best_val_loss is not None:  # earlier versions do not have its step
        best = open_run(folder, "best", weights=False)
        state.best_step = best.header.state.step
    decay_start = min(plan.decay_start, planned.decay_start)
    if plan.end == state.step:
        notes.append(
            f"{shell_word(folder)} is finished; to train on, raise --train.max_steps or "
            f"--train.minutes"
        )
    elif plan.end != planned.end and state.step > decay_start:
        earlier = open_run(folder, "before_decay")
        if state.step <= plan.end and earlier.header.state.step <= decay_start:
            decay = state.seconds - earlier.header.state.seconds
            if plan.max_steps is None and 60 * plan.minutes < decay:
                raise UserError(
                    f"{shell_word(folder)} repeats its decay, which took {decay:.0f} s, to become "
                    f"longer; give more --train.minutes"
                )
            shorter = state
            saved, state = earlier, earlier.header.state
            state.best_val_loss, state.best_step = shorter.best_val_loss, shorter.best_step
            notes.append(f"back to step {state.step}, before the learning rates decayed")
        else:
            notes.append("note: the result differs from a run that was planned with this end")
    if plan.max_steps is None and "minutes" in given(file, values, "train"):
        plan = dataclasses.replace(plan, minutes=plan.minutes + state.seconds / 60)
        config = dataclasses.replace(config, train=plan)
    machine = prepare_machine(plan, processes, saved.header.machine)
    if saved.header.machine != machine:
        before = printable(str(saved.header.machine))
        notes.append(f"note: rounding may differ from the previous session: {before}")
    batches = open_batches(
        config.data,
        config.model.block_size,
        plan.seed,
        saved.tokenizer,
        saved=saved.header.corpus,
        is_named="source" in given(file, values, "data"),
    )
    check_resume(saved, batches.corpus, plan)
    return Start(config, state, machine, batches, saved.restore, "", saved.origin, tuple(notes))


def check_resume(saved: SavedRun, corpus: Corpus, config: TrainConfig) -> None:
    """Check that the run can be continued.

    Raises:
        UserError: for another text, for fewer steps than it has, or for weights alone, as the
            page saves them.
    """
    folder, state = shell_word(saved.path.parent), saved.header.state
    instead = f"use --init_from {folder}"
    if not any(name.startswith("optimizer.") for name in saved.tensors):
        raise UserError(f"{saved.path} holds weights without the optimizer's state; {instead}")
    if saved.header.corpus.sha256 != corpus.sha256:
        raise UserError(
            f"{folder} was trained on another text, {saved.header.corpus.source}; {instead}"
        )
    if config.end < state.step:
        raise UserError(f"{folder} has {state.step} steps; raise --train.max_steps")


def change_config(saved: SavedRun, flag: str, file: str | None, values: Values) -> Config:
    """Return the config of a saved run with the given changes.

    Raises:
        UserError: for a change that `flag` does not allow.
    """
    config = read_flags(values, file, saved.config)
    check_changes(saved.config, config, flag)
    return config


def read_flags(values: Values, file: str | None, config: Config = Config()) -> Config:  # noqa: B008
    """Read the config, and reject a column for a text without columns."""
    config = read_config(values, file, config)
    data = config.data
    if "column" in values["data"] and (is_task(data) or not find_source(data).has_columns):
        kinds = ", ".join(TABLES)
        raise UserError(
            f"--data.column is for tables ({kinds}) and hub:; save the text as a table, or omit it"
        )
    return config


def given(file: str | None, values: Values, section: str) -> dict[str, Any]:
    """Return what the file and the flags give in a section of the config."""
    return read_yaml(file).get(section, {}) | values[section]


# --- the config fields that may change -----------------------------------------------------------

# A run that starts from another one may not change the model and the vocabulary. A resumed run may
# change its device, its length, and how often it evaluates, logs and saves, but not what it learns.
# (The text may have moved; a different text has a different hash.)
MAY_CHANGE = {
    "--init_from": [
        "data.source",
        "data.hub_*",
        "data.column",
        "data.task_*",
        "data.*_fraction",
        "data.separator",
        "model.*dropout",
        "model.attention",
        "train.*",
    ],
    "--resume": [
        "data.source",
        "model.attention",
        "train.max_steps",
        "train.minutes",
        "train.*_every",
        "train.*_tokens",
        "train.snapshots",
        "train.tensorboard",
        "train.device",
        "train.precision",
        "train.threads",
        "train.compile",
    ],
}


def check_changes(old: Config, new: Config, flag: str) -> None:
    """Reject changes of the config that `flag` does not allow.

    Raises:
        UserError: naming the first field that may not change.
    """
    after = dataclasses.asdict(new)
    for section, values in dataclasses.asdict(old).items():
        for name, value in values.items():
            now, field = after[section][name], f"{section}.{name}"
            if now != value and not any(fnmatch(field, each) for each in MAY_CHANGE[flag]):
                before = "its default" if value is None else value
                raise UserError(f"{flag} cannot change {field} from {before} to {now}")
