"""What a person sees of a run: the progress bar, metrics.jsonl, TensorBoard."""

import json
import os
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from atomic import write_atomically

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


class Metrics:
    """One JSON object a line in metrics.jsonl, and the same numbers in TensorBoard."""

    def __init__(self, run: Path, step: int, tensorboard: bool) -> None:
        """Go on after `step`: what was written of later steps is taken back."""
        path = run / "metrics.jsonl"
        if path.exists():
            lines = path.read_text(errors="replace").splitlines(keepends=True)
            kept = "".join(line for line in lines if is_until(line, step))
            write_atomically(path, kept.encode())
        self.file = open(path, "a", buffering=1)  # noqa: SIM115 - closed by __exit__
        self.writer = open_tensorboard(run, step) if tensorboard else None

    def write(self, step: int, numbers: dict[str, float], sample: str = "") -> None:
        """Add a line, and for each number a point in TensorBoard; a sample goes there as text."""
        self.file.write(json.dumps({"step": step, **numbers}) + "\n")
        if self.writer is not None:
            for name, number in numbers.items():
                self.writer.add_scalar(name, number, step)
            if sample:
                indented = "".join(f"    {line}\n" for line in sample.splitlines())
                self.writer.add_text("sample", indented, step)

    def flush(self) -> None:
        """Have all of it on the disk; called before a checkpoint, so that none is ahead of it."""
        self.file.flush()
        os.fsync(self.file.fileno())
        if self.writer is not None:
            self.writer.flush()

    def __enter__(self) -> "Metrics":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.file.close()
        if self.writer is not None:
            self.writer.close()


def open_tensorboard(run: Path, step: int) -> "SummaryWriter":
    """Events that go on after `step`; those of later steps no longer count."""
    from torch.utils.tensorboard import SummaryWriter  # here, for runs that do without it

    return SummaryWriter(str(run), purge_step=step + 1)


def is_until(line: str, step: int) -> bool:
    """Whether a line of metrics.jsonl is whole and speaks of `step` or an earlier one."""
    try:
        numbers: Any = json.loads(line)
        return line.endswith("\n") and numbers["step"] <= step
    except (ValueError, TypeError, KeyError):  # cut short when the process was killed, or not ours
        return False


def progress_bar(step: int, max_steps: int) -> "tqdm[Any]":
    """Step, loss, tokens per second and time left, on one line; silent where nobody watches."""
    return tqdm(
        total=max_steps,
        initial=step,
        bar_format="step {n_fmt}/{total_fmt} |{bar:24}| {desc}{remaining} left",
        leave=False,
        disable=None,
    )
