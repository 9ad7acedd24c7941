"""A run is a folder, runs/NAME: what was run, what it measured, what it learned.

config.yaml         the whole config
run.json            the text, the machine and the versions
metrics.jsonl       one object a line
events.out.*        the same for TensorBoard
last.safetensors    everything that training goes on from
best.safetensors    the weights of the lowest validation loss
snapshots/          the weights along the way, in half precision
.lock               held by the process that trains
"""

import dataclasses
import difflib
import itertools
import json
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml
from filelock import FileLock, Timeout
from torch import Tensor

from common.atomic import write_atomically
from common.errors import UserError
from configs.load import SECTIONS, Config, from_plain, to_plain
from data.tokenizer import Tokenizer, load_tokenizer
from model.gpt import GPT
from run.checkpoint import Header, load_checkpoint, load_weights
from training.optim import schedule
from training.processes import Processes
from training.runtime import Runtime
from training.size import count_parameters, decoding_bytes, refuse_too_large

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
# What decides which part of a text a run has never seen.
SPLITS = {"val_fraction", "test_fraction", "separator"}


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
        if type(token) is not int or not 0 <= token < self.tokenizer.vocab_size:
            raise UserError(f"{self.path} does not say where to start; give a --prompt")
        return token

    def trained_on(self, info: dict[str, Any]) -> bool:
        """Whether a text is the one that it was trained on."""
        return bool(info.get("sha256") == self.header.corpus.get("sha256"))

    def refuse_misfit(self) -> None:
        """Refuse a config that describes a larger model than there are weights for, before one of
        that size is made.

        Raises:
            UserError: naming both sizes.
        """
        config, V = self.config.model, self.tokenizer.vocab_size
        there = sum(t.numel() for name, t in self.tensors.items() if name.startswith("model."))
        if count_parameters(config, V) > there:
            raise UserError(
                f"{self.path} does not fit its own config: that describes a model of "
                f"{count_parameters(config, V):,} parameters, and {there:,} are there"
            )

    def model(self, device: torch.device, streams: int = 1) -> GPT:
        """The model with the saved weights, ready to use rather than to train.

        Raises:
            UserError: when they are not what the config describes, or when there is no room here
                to decode so many `streams`.
        """
        self.refuse_misfit()
        config, V = self.config.model, self.tokenizer.vocab_size
        size = {"model.block_size": config.block_size, "num_samples": streams}
        refuse_too_large(decoding_bytes(config, streams, V), device, size)
        model = GPT(config, V)
        load_weights(model, self.tensors, self.path)
        return model.to(device).eval()


def make_folder(name: str | None, file: str | None, source: SavedRun | None) -> Path:
    """Make the folder of a new run.

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
        return make_unused(RUNS / f"{stem}-{time.strftime('%Y%m%d-%H%M%S')}")
    if name in ("", "..") or Path(name).name != name or not name.isprintable():
        raise UserError(f"--run {name!r} must be a name for a folder in {RUNS}/, not a path")
    run = RUNS / name
    refuse_existing(run)
    run.mkdir(parents=True, exist_ok=True)
    return run


def refuse_existing(run: Path) -> None:
    """Refuse a folder with more in it than the first moments of a run leave.

    (A process that ends before its first checkpoint leaves nothing to resume, and should not keep
    the name.)

    Raises:
        UserError: when there is more.
    """
    if not run.exists():
        return
    first = {"config.yaml", "run.json", ".lock", "metrics.jsonl"}
    paths = list(run.iterdir()) if run.is_dir() else [run]
    made = [p.name in first or p.name.startswith(("events.out.", ".writing-")) for p in paths]
    if not all(made) or any(p.name == "metrics.jsonl" and p.stat().st_size for p in paths):
        raise UserError(f"{run} exists; go on with --resume {run}, or take another name for --run")


@contextmanager
def hold(run: Path) -> Iterator[None]:
    """Keep every other process from training in this folder meanwhile.

    The system lets go of the lock however the process ends. What a killed one left half-written
    is removed.

    Raises:
        UserError: when another process has it.
    """
    try:
        lock = FileLock(run / ".lock").acquire(blocking=False)
    except Timeout:
        raise UserError(f"another process is training {run}; wait for it or stop it") from None
    with lock:
        for scratch in run.rglob(".writing-*"):
            scratch.unlink()
        yield


def describe_run(run: Path, config: Config, facts: dict[str, Any]) -> None:
    """Write what is run beside what it will make: the config, the text, the machine."""
    save_config(run, config)
    machine = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "platform": platform.platform(),
    }
    write_atomically(run / "run.json", (json.dumps(facts | machine, indent=1) + "\n").encode())


def make_unused(path: Path) -> Path:
    """Make the folder, or with -2, -3 and so on after its name the first that is not there."""
    folder = path
    for number in itertools.count(2):
        try:
            folder.mkdir(parents=True)
            break
        except FileExistsError:
            folder = path.with_name(f"{path.name}-{number}")
    return folder


def save_config(run: Path, config: Config) -> None:
    """Write the whole config, so that `python train.py RUN/config.yaml` does the same again."""
    write_atomically(run / "config.yaml", yaml_of(config))


def yaml_of(config: Config) -> bytes:
    """The config as the text of a YAML file."""
    return yaml.safe_dump(to_plain(config), sort_keys=False).encode()


def find_run(name: str | None) -> Path:
    """The folder of a run: a path, a name in runs/, or the newest.

    Raises:
        UserError: when there is none, or one with a link in it that leads out of it: whoever made
            such a folder chooses files of yours to be read or written.
    """
    if name is None:
        saved = list(RUNS.glob("*/last.safetensors"))
        if not saved:
            raise UserError(f"there is no run in {RUNS}/ yet; make one with: python train.py")
        return without_links(max(saved, key=lambda path: path.stat().st_mtime_ns).parent)
    if Path(name).is_file():
        raise UserError(f"{name} is a file; name the run's folder, {Path(name).parent}")
    folders = [folder for folder in (Path(name), RUNS / name) if folder.is_dir()]
    for folder in folders:
        if (folder / "last.safetensors").is_file():
            return without_links(folder)
    if folders:
        raise UserError(f"{folders[0]} is not a run: it has no last.safetensors")
    known = sorted(path.parent.name for path in RUNS.glob("*/last.safetensors"))
    close = difflib.get_close_matches(Path(name).name, known, n=5, cutoff=0.3) or known[-5:]
    raise UserError(
        f"there is no run {name}; {RUNS}/ "
        + (f"has {len(known)}, among them {', '.join(close)}" if known else "is empty")
    )


def without_links(run: Path) -> Path:
    """The folder, unless something in it leads out of it; see `find_run`."""
    for path in (*run.iterdir(), *run.glob("snapshots/*")):
        try:
            leads_to = path.resolve()
        except (OSError, RuntimeError):  # in a circle
            raise UserError(f"{path} leads nowhere; remove that link") from None
        if path.is_symlink() and not leads_to.is_relative_to(run.resolve()):
            raise UserError(f"{path} leads out of the run, to {leads_to}; remove that link")
        if not (path.is_file() or path.is_dir()):
            raise UserError(f"{path} is no file and no folder; remove it")
    return run


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
    if header.tokenizer["kind"] != config.data.tokenizer:
        raise UserError(f"{path} is damaged: its tokenizer is not the one that its config names")
    return SavedRun(path, header, config, tokenizer, tensors)


def refuse_changes(old: Config, new: Config, doing: str) -> None:
    """Refuse to --resume, --init_from or --evaluate with fields changed that may not be.

    Raises:
        UserError: naming the first such field.
    """
    allowed = {
        "--resume": FREE_ON_RESUME,
        "--init_from": FREE_ON_INIT,
        "--evaluate": FREE_ON_INIT | {"data": FREE_ON_INIT["data"] - SPLITS},
    }[doing]
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
    if not saved.trained_on(info):
        run = saved.path.parent
        raise UserError(
            f"the text is not the one that {run} was trained on, which came from "
            f"{saved.header.corpus.get('source')}; to go on with another one use --init_from {run}"
        )


def notes_on_resume(
    saved: SavedRun, config: Config, runtime: Runtime, processes: Processes
) -> list[str]:
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
        "processor": (header.processor, runtime.processor),
        "threads": (header.threads, runtime.threads),
        "processes": (header.processes, processes.size),
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
