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
from configs.nanogpt import INIT_FROM

RUNS = Path("runs")


def make_folder(name: str | None, stem: str) -> Path:
    """Make the folder of a new run.

    Args:
        name: of the folder; None makes one of `stem` and the time.

    Raises:
        UserError: for a run of that name that exists already; none is ever overwritten.
    """
    if name is None:
        RUNS.mkdir(exist_ok=True)
        return make_unused(RUNS / f"{stem}-{time.strftime('%Y%m%d-%H%M%S')}")
    if name in ("", "..") or Path(name).name != name or not name.isprintable():
        raise UserError(f"--run {name!r} must be a name for a folder in {RUNS}/, not a path")
    run = RUNS / name
    check_unused(run)
    run.mkdir(parents=True, exist_ok=True)
    return run


def check_unused(run: Path) -> None:
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
        raise UserError(f"{run} exists; resume it with --resume {run}, or choose another --run")


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
        UserError: when there is none, or when a link in its folder leads out of it: whoever made
            such a folder could choose which files of yours are read or written.
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
    if name in INIT_FROM:
        raise UserError(
            f"there is no run {name}; nanoGPT's --init_from={name} is here: {INIT_FROM[name]}"
        )
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
            raise UserError(f"{path} is neither a file nor a folder; remove it")
    return run
