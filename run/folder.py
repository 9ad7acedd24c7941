"""A run is a folder, runs/NAME: what was run, what it measured, what it learned.

config.yaml         the whole config, to read and to run again; what counts is in the checkpoints
run.json            the text and the machine
metrics.jsonl       one object a line
events.out.*        the same for TensorBoard
last.safetensors    everything that training resumes from
best.safetensors    the weights of the lowest validation loss
snapshots/          the weights along the way, in half precision
.lock               held by the process that trains
"""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from filelock import FileLock, Timeout

from common.atomic import write_atomically
from common.errors import UserError
from configs.load import Config, nearest, to_plain

RUNS = Path("runs")
# What training writes by `write_atomically`.
WRITTEN = ("config.yaml", "run.json", "metrics.jsonl", "*.safetensors", "snapshots/*.safetensors")
# What a run holds before its first checkpoint.
FIRST = ("config.yaml", "run.json", ".lock", "metrics.jsonl", "events.out.", ".writing-")


def make_folder(name: str | None, stem: str) -> Path:
    """Make the folder of a new run.

    Args:
        name: of the folder; None makes one of `stem` and the time.

    Raises:
        UserError: if a run of that name exists; none is ever overwritten.
    """
    run = RUNS / (f"{stem}-{time.strftime('%Y%m%d-%H%M%S')}" if name is None else name)
    if run.parent != RUNS:
        raise UserError(f"--run {name!r} must be a name for a folder in {RUNS}/, not a path")
    check_unused(run)
    run.mkdir(parents=True, exist_ok=True)
    return run


def check_unused(run: Path) -> None:
    """Reject a folder that holds more than a run that never saved a checkpoint leaves.

    Such a run cannot be resumed, and should not keep its name.

    Raises:
        UserError: if it holds more.
    """
    if any(not path.name.startswith(FIRST) for path in run.glob("*")):
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
        with FileLock(run / ".lock", blocking=False):
            for name in WRITTEN:
                path = run / name
                for scratch in path.parent.glob(f".writing-*-{path.name}"):
                    scratch.unlink()
            yield
    except Timeout:
        raise UserError(f"another process is training {run}; wait for it or stop it") from None


def write_run_info(run: Path, config: Config, facts: dict[str, Any]) -> None:
    """Write what is run: the config, and the facts in run.json."""
    save_config(run, config)
    write_atomically(run / "run.json", (json.dumps(facts, indent=1) + "\n").encode())


def save_config(run: Path, config: Config) -> None:
    """Write the whole config, so that `python train.py RUN/config.yaml` does the same again."""
    write_atomically(run / "config.yaml", yaml_of(config))


def yaml_of(config: Config) -> bytes:
    """Return the config as the text of a YAML file."""
    return yaml.safe_dump(to_plain(config), sort_keys=False).encode()


def find_run(name: str | None) -> Path:
    """Return the folder of a run: a path, a name in runs/, or the newest.

    Raises:
        UserError: if there is none.
    """
    saved = sorted(RUNS.glob("*/last.safetensors"), key=lambda path: path.stat().st_mtime_ns)
    if name is None:
        if not saved:
            raise UserError(f"there is no run in {RUNS}/ yet; make one with: python train.py")
        return saved[-1].parent
    for run in (Path(name), RUNS / name):
        if (run / "last.safetensors").is_file():
            return run
    hint = nearest(Path(name).name, [path.parent.name for path in saved])
    raise UserError(f"there is no run {name} (a folder with last.safetensors){hint}")
