"""A run is a folder, runs/NAME: what was run, what it measured, what it learned.

config.yaml         the whole config
run.json            the text, the machine and the versions
metrics.jsonl       one object a line
events.out.*        the same for TensorBoard
last.safetensors    everything that training resumes from
best.safetensors    the weights of the lowest validation loss
snapshots/          the weights along the way, in half precision
.lock               held by the process that trains
"""

import difflib
import itertools
import json
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import yaml
from filelock import FileLock, Timeout

from common.atomic import write_atomically
from common.errors import UserError
from configs.load import Config, to_plain

RUNS = Path("runs")
# What training writes by `write_atomically`.
WRITTEN = ("config.yaml", "run.json", "metrics.jsonl", "*.safetensors", "snapshots/*.safetensors")


def make_folder(name: str | None, stem: str) -> Path:
    """Make the folder of a new run.

    Args:
        name: of the folder; None makes one of `stem` and the time.

    Raises:
        UserError: if a run of that name exists; none is ever overwritten.
    """
    if name is None:
        RUNS.mkdir(exist_ok=True)
        return make_unused(RUNS / f"{stem}-{time.strftime('%Y%m%d-%H%M%S')}")
    if name in ("", "..") or Path(name).name != name:
        raise UserError(f"--run {name!r} must be a name for a folder in {RUNS}/, not a path")
    run = RUNS / name
    check_unused(run)
    run.mkdir(parents=True, exist_ok=True)
    return run


def check_unused(run: Path) -> None:
    """Reject a folder that holds more than a run that never saved a checkpoint leaves.

    Such a run cannot be resumed, and should not keep its name.

    Raises:
        UserError: if it holds more.
    """
    if not run.exists():
        return
    first = {"config.yaml", "run.json", ".lock", "metrics.jsonl"}
    paths = list(run.iterdir()) if run.is_dir() else [run]
    made = [p.name in first or p.name.startswith(("events.out.", ".writing-")) for p in paths]
    if not all(made) or any(p.name == "metrics.jsonl" and p.stat().st_size for p in paths):
        raise UserError(f"{run} exists; resume it with --resume {run}, or choose another --run")


@contextmanager
def hold(run: Path) -> Iterator[None]:
    """Keep other processes from training in this folder inside the `with` block.

    The system releases the lock however the process ends. Scratch files that a killed process left
    while writing one of the run's files are removed.

    Raises:
        UserError: if another process has it.
    """
    try:
        lock = FileLock(run / ".lock").acquire(blocking=False)
    except Timeout:
        raise UserError(f"another process is training {run}; wait for it or stop it") from None
    with lock:
        for name in WRITTEN:
            folder, _, file = name.rpartition("/")
            for scratch in (run / folder).glob(f".writing-*-{file}"):
                scratch.unlink(missing_ok=True)
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
    """Make the folder; where it exists, the first free one with -2, -3 and so on after its name."""
    folder = path
    for number in itertools.count(2):
        try:
            folder.mkdir()
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
        UserError: if there is none.
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
