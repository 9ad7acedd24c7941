"""The folder of a run, runs/NAME.

config.yaml         the whole config, with the text and the machine in comments
metrics.jsonl       one JSON object per line
events.out.*        the same metrics for TensorBoard
last.safetensors    the state that training resumes from
best.safetensors    the weights with the lowest validation loss
before_decay.safetensors  the state before the learning rates decay, from which a longer run goes on
snapshots/          weights during training, in half precision
.lock               held by the process that trains
"""

import dataclasses
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import yaml
from filelock import FileLock, Timeout

from common.atomic import write_atomically
from common.errors import UserError, shell_word
from configs.config import Config
from configs.load import nearest
from training.state import TrainState

RUNS = Path("runs")
Numbers = dict[str, Any]  # by name; `step` is one of them


def make_folder(name: str | None, stem: str) -> Path:
    """Make the folder of a new run.

    Args:
        name: name of the folder; if None, `stem` and a time at which no other run started.

    Raises:
        UserError: if a run of that name has a checkpoint.
    """
    while name is None:
        folder = RUNS / f"{stem}-{time.strftime('%Y%m%d-%H%M%S')}"
        RUNS.mkdir(exist_ok=True)
        with suppress(FileExistsError):
            folder.mkdir()
            return folder
        time.sleep(0.1)
    folder = RUNS / name
    if folder.parent != RUNS or name == ".." or not name.isprintable():
        raise UserError(f"--run {name!r} must be a name, not a path, without control characters")
    check_unused(folder)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def check_unused(folder: Path) -> None:
    """Check that a folder has no checkpoint. The name of a run without one can be used again,
    because the run cannot be resumed.

    Raises:
        UserError: if it has a checkpoint.
    """
    if any(folder.glob("[!.]*.safetensors")):
        run = shell_word(folder)
        raise UserError(f"{run} exists; use --resume {run}, or another --run")


@contextmanager
def lock_run(folder: Path) -> Iterator[Path]:
    """Keep other processes from training in a folder inside the `with` block; yield it.

    The system releases the lock when the process ends for any reason. Incomplete checkpoints of a
    killed process are removed.

    Raises:
        UserError: if another process holds the lock.
    """
    try:
        with FileLock(folder / ".lock", blocking=False):
            for name in ("*.safetensors", "config.yaml", "metrics.jsonl"):
                for scratch in folder.rglob(f".writing-*-{name}"):
                    scratch.unlink()
            yield folder
    except Timeout:
        raise UserError(f"another process is training {folder}; wait, or stop it") from None


def save_config(folder: Path, config: Config, about: str) -> None:
    """Write the whole config. `python train.py RUN/config.yaml` repeats the run, unless it started
    from the weights of another run.

    Args:
        about: the text and the machine, which become comments.
    """
    comments = "".join(f"# {line}\n" for line in about.splitlines())
    plain = yaml.safe_dump(dataclasses.asdict(config), sort_keys=False)
    write_atomically(folder / "config.yaml", (comments + plain).encode())


def find_run(name: str | Path | None) -> Path:
    """Return the folder of a run: a path, a name in runs/, or the newest.

    Raises:
        UserError: if there is none.
    """
    saved = sorted(RUNS.glob("*/last.safetensors"), key=lambda path: path.stat().st_mtime_ns)
    if name is None:
        if not saved:
            raise UserError(f"there is no run in {RUNS}/ yet; make one with: python train.py")
        return saved[-1].parent
    for folder in (Path(name), RUNS / name):
        if (folder / "last.safetensors").is_file():
            return folder
    hint = nearest(Path(name).name, [path.parent.name for path in saved])
    raise UserError(f"there is no run {name} (a folder with last.safetensors){hint}")


# --- what training wrote --------------------------------------------------------------------------


def read_metrics(folder: Path) -> list[Numbers]:
    """Read metrics.jsonl, one dictionary per line; skip a line that is not a measurement."""
    path, numbers = folder / "metrics.jsonl", list[Numbers]()
    for line in path.read_bytes().splitlines() if path.exists() else []:
        with suppress(ValueError):
            read = json.loads(line)
            if isinstance(read, dict) and isinstance(read.get("step"), int):
                numbers.append(read)
    return numbers


def find_snapshots(folder: Path) -> dict[int, Path]:
    """Return the snapshots of a run by their steps, in order."""
    paths = sorted(folder.glob("snapshots/*.safetensors"))
    return {int(path.stem): path for path in paths if path.stem.isdecimal()}


def rewind(folder: Path, state: TrainState) -> None:
    """Remove the metrics and the snapshots of later steps than `state`, which will be repeated, or,
    in a new run, those of a run that left no checkpoint."""
    for step, snapshot in find_snapshots(folder).items():
        if step > state.step:
            snapshot.unlink()
    lines = [
        json.dumps(line) + "\n"
        for line in read_metrics(folder)
        if line["step"] <= (state.last_eval_step if "val_loss" in line else state.step)
    ]
    write_atomically(folder / "metrics.jsonl", "".join(lines if state.step else []).encode())
