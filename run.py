"""A run is a folder, runs/NAME: what was run, what it measured, what it learned.

config.yaml         the whole config
run.json            the text, the machine and the versions
metrics.jsonl       one object a line
events.out.*        the same for TensorBoard
last.safetensors    everything that training goes on from
best.safetensors    the weights of the lowest validation loss
snapshots/          the weights along the way, in half precision
"""

import dataclasses
import difflib
import itertools
import json
import platform
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor

from atomic import write_atomically
from configs.load import SECTIONS, Config, from_plain, to_plain
from data.tokenizer import Tokenizer, load_tokenizer
from errors import UserError
from model.gpt import GPT
from training.checkpoint import Header, load_checkpoint, load_weights
from training.optim import schedule
from training.runtime import Runtime

RUNS = Path("runs")

# What may change when a run is gone on with: where it computes, how often it is looked at, how
# long; not what it learns. (Where its text lies may change too; another text has another hash.)
FREE_ON_RESUME = {
    "data": {"source", "cache_dir", "hub_revision"},
    "model": {"attention"},
    "train": {
        *(
            "max_steps",
            "eval_every",
            "patience",
            "target_loss",
            "sample_tokens",
            "save_every",
            "snapshots",
            "snapshot_mb",
            "log_every",
        ),
        *("tensorboard", "device", "precision", "threads", "compile"),
    },
}
# And when a new run starts from its weights: all but what gives the weights their meaning.
FREE_ON_INIT = {
    "data": {f.name for f in dataclasses.fields(SECTIONS["data"])} - {"tokenizer"},
    "model": {"dropout", "attn_dropout", "attention"},
    "train": {f.name for f in dataclasses.fields(SECTIONS["train"])},
}


@dataclass(frozen=True)
class SavedRun:
    """A checkpoint, opened: needs nothing but its file."""

    path: Path
    """The checkpoint."""

    header: Header
    config: Config
    tokenizer: Tokenizer
    tensors: dict[str, Tensor]

    @property
    def start_token(self) -> int:
        """Where writing starts without a prompt."""
        token = self.header.corpus.get("start_token")
        if not isinstance(token, int) or not 0 <= token < self.tokenizer.vocab_size:
            raise UserError(f"{self.path} does not say where to start; give a --prompt")
        return token

    def model(self, device: torch.device) -> GPT:
        """The model with the saved weights, ready to use rather than to train."""
        model = GPT(self.config.model, self.tokenizer.vocab_size)
        load_weights(model, self.tensors, self.path)
        return model.to(device).eval()


def create_run(
    name: str | None,
    file: str | None,
    source: SavedRun | None,
    config: Config,
    facts: dict[str, Any],
) -> Path:
    """Make the folder of a new run, with its config and what else is known of it.

    Args:
        name: of the folder; None makes one of the config's name and the time.
        file: the config file, if there was one.
        source: the run whose weights it starts from, if there is one.

    Raises:
        UserError: for a run of that name that exists already; none is ever overwritten.
    """
    if name is None:
        stem = f"from-{source.path.parent.name}" if source else "default"
        if file is not None:  # runs/NAME/config.yaml is called after NAME
            stem = Path(file).parent.name if Path(file).stem == "config" else Path(file).stem
        run = unused(RUNS / f"{stem}-{time.strftime('%Y%m%d-%H%M%S')}")
    elif name in ("", "..") or Path(name).name != name or not name.isprintable():
        raise UserError(f"--run {name!r} must be a name for a folder in {RUNS}/, not a path")
    else:
        run = RUNS / name
    try:
        run.mkdir(parents=True)
    except FileExistsError:
        raise UserError(
            f"{run} exists; go on with --resume {run}, or take another name for --run"
        ) from None
    save_config(run, config)
    machine = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "platform": platform.platform(),
    }
    (run / "run.json").write_text(json.dumps(facts | machine, indent=1) + "\n")
    return run


def unused(path: Path) -> Path:
    """The path, or with -2, -3 and so on after it the first that nothing is at."""
    names = (path.with_name(f"{path.name}-{n}") if n > 1 else path for n in itertools.count(1))
    return next(name for name in names if not name.exists())


def save_config(run: Path, config: Config) -> None:
    """Write the whole config, so that `python train.py RUN/config.yaml` does the same again."""
    write_atomically(run / "config.yaml", yaml_of(config))


def yaml_of(config: Config) -> bytes:
    """The config as the text of a YAML file."""
    return yaml.safe_dump(to_plain(config), sort_keys=False).encode()


def find_run(name: str | None) -> Path:
    """The folder of a run: a path, a name in runs/, or the newest.

    Raises:
        UserError: when there is none.
    """
    if name is None:
        saved = list(RUNS.glob("*/last.safetensors"))
        if not saved:
            raise UserError(f"there is no run in {RUNS}/ yet; make one with: python train.py")
        return max(saved, key=lambda path: path.stat().st_mtime_ns).parent
    if Path(name).is_file():
        raise UserError(f"{name} is a file; name the run's folder, {Path(name).parent}")
    folders = [folder for folder in (Path(name), RUNS / name) if folder.is_dir()]
    for folder in folders:
        if (folder / "last.safetensors").is_file():
            return folder
    if folders:
        raise UserError(f"{folders[0]} is not a run: it has no last.safetensors")
    known = sorted(path.parent.name for path in RUNS.glob("*/last.safetensors"))
    close = difflib.get_close_matches(Path(name).name, known, n=5, cutoff=0.3) or known[-5:]
    raise UserError(
        f"there is no run {name}; {RUNS}/ "
        + (f"has {len(known)}, among them {', '.join(close)}" if known else "is empty")
    )


def open_run(run: Path, which: str = "best") -> SavedRun:
    """Open a checkpoint of a run.

    Args:
        which: "best" or "last"; a run that was never evaluated has only a last one.

    Raises:
        UserError: for a checkpoint that is missing or damaged.
    """
    path = run / f"{which}.safetensors"
    if which == "best" and not path.exists():
        path = run / "last.safetensors"
    header, tensors = load_checkpoint(path)
    config = from_plain(header.config, str(path))
    try:
        tokenizer = load_tokenizer(header.tokenizer)
    except ValueError as error:
        raise UserError(f"{path} is damaged: {error}") from None
    return SavedRun(path, header, config, tokenizer, tensors)


def refuse_changes(old: Config, new: Config, doing: str) -> None:
    """Refuse to go on ("--resume" or "--init_from") with fields changed that may not be.

    Raises:
        UserError: naming the first such field.
    """
    allowed = {"--resume": FREE_ON_RESUME, "--init_from": FREE_ON_INIT}[doing]
    before, after = to_plain(old), to_plain(new)
    for section, values in before.items():
        for key, value in values.items():
            now = after[section][key]
            if now != value and key not in allowed[section]:
                raise UserError(
                    f"{doing} cannot change {section}.{key} from {value} to {now}: "
                    f"it decides what is learned; start a new run to change it"
                )


def refuse_other_text(saved: SavedRun, info: dict[str, Any]) -> None:
    """Refuse to resume on another text than the run was trained on.

    Raises:
        UserError: naming where the text came from.
    """
    if info.get("sha256") != saved.header.corpus.get("sha256"):
        run = saved.path.parent
        raise UserError(
            f"the text is not the one that {run} was trained on, which came from "
            f"{saved.header.corpus.get('source')}; to go on with another one use --init_from {run}"
        )


def notes_on_resume(saved: SavedRun, config: Config, runtime: Runtime) -> list[str]:
    """What a person should know of changes that --resume allows."""
    notes, header, old, new = [], saved.header, saved.config, config
    file = saved.path.parent / "config.yaml"
    if file.exists() and file.read_bytes() != yaml_of(old):
        notes.append(f"{file} was edited; a run goes on as it was, and changes are given as flags")
    if new.train.max_steps != old.train.max_steps:
        was, now = (schedule(header.step, c.train) for c in (old, new))
        notes.append(
            f"max_steps {old.train.max_steps} -> {new.train.max_steps}: the learning rates follow "
            f"the new schedule, from here at {now:.3g} of their peaks instead of {was:.3g}"
        )
    rounding = {
        "device": (header.device, runtime.device.type),
        "threads": (header.threads, runtime.threads),
        "precision": (header.precision, runtime.precision_name),
        "PyTorch": (header.torch, torch.__version__),
        "compile": (old.train.compile, new.train.compile),
        "attention": (old.model.attention, new.model.attention),
    }
    for name, (before, after) in rounding.items():
        if before != after:
            notes.append(f"{name} {before} -> {after}: sums are rounded otherwise from here on")
    if header.device != runtime.device.type:
        notes.append("dropout draws from a generator of the new device, which starts anew")
    return notes
