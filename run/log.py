"""What a person sees of a run: the progress bar, metrics.jsonl, TensorBoard."""

import json
import os
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TextIO

from tqdm import tqdm

from common.atomic import sync, write_atomically
from common.errors import UserError

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


class Metrics:
    """One JSON object a line in metrics.jsonl, and the same numbers in TensorBoard."""

    def __init__(
        self, run: Path, step: int, evaluated: int, tensorboard: bool, silent: bool = False
    ) -> None:
        """Go on after `step`: what was written of later steps is taken back, and so is an
        evaluation after the step `evaluated`, which a stop came too soon for or will come again.

        A `silent` one writes nothing, where another process does.
        """
        self.path, self.writer = run / "metrics.jsonl", None
        if silent:
            self.file: TextIO = open(os.devnull, "a")  # noqa: SIM115 - closed by __exit__
            return
        kept = []
        if self.path.exists():
            lines = self.path.read_text(errors="replace").splitlines(keepends=True)
            kept = [line for line in lines if is_until(line, step, evaluated)]
            write_atomically(self.path, "".join(kept).encode())
        self.file = open(self.path, "a", buffering=1)  # noqa: SIM115 - closed by __exit__
        if tensorboard:
            # Events are taken back by whole steps; what counts of the first of them is put back.
            first = step + 1 if evaluated == step else step
            self.writer = open_tensorboard(run, first)
            for numbers in map(json.loads, kept):
                if numbers["step"] >= first:
                    self.add_events(numbers.pop("step"), numbers)

    def write(self, step: int, numbers: dict[str, float], sample: str = "") -> None:
        """Add a line, and for each number a point in TensorBoard; a sample goes there as text.

        Raises:
            UserError: when it cannot be written.
        """
        try:
            self.file.write(json.dumps({"step": step, **numbers}) + "\n")
            self.add_events(step, numbers, sample)
        except OSError as error:
            raise self.unwritten(error) from error

    def add_events(self, step: int, numbers: dict[str, float], sample: str = "") -> None:
        """The same for TensorBoard, if it is asked for."""
        if self.writer is not None:
            for name, number in numbers.items():
                self.writer.add_scalar(name, number, step)
            if sample:
                indented = "".join(f"    {line}\n" for line in sample.splitlines())
                self.writer.add_text("sample", indented, step)

    def flush(self) -> None:
        """Have all of it on the disk; called before a checkpoint, so that none is ahead of it.

        Raises:
            UserError: when it cannot be written.
        """
        try:
            sync(self.file)
            if self.writer is not None:
                self.writer.flush()
                for path in sorted(self.path.parent.glob("events.out.tfevents.*"))[-1:]:
                    with open(path, "ab") as events:
                        sync(events)
        except OSError as error:
            raise self.unwritten(error) from error

    def unwritten(self, error: OSError) -> UserError:
        """The line for a disk that takes no more."""
        return UserError(f"could not write to {self.path.parent}: {error.strerror}")

    def __enter__(self) -> "Metrics":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.file.close()
            if self.writer is not None:
                self.writer.close()
        except OSError as last:  # where an error is under way already, that says more
            if error is None:
                raise self.unwritten(last) from last


def read_metrics(run: Path) -> list[dict[str, Any]]:
    """What metrics.jsonl says, a dictionary a line; a line cut short, or not ours, says nothing."""
    path = run / "metrics.jsonl"
    lines = path.read_text(errors="replace").splitlines() if path.exists() else []
    return [numbers for line in lines if (numbers := parse(line)) is not None]


def parse(line: str) -> dict[str, Any] | None:
    """A line of metrics.jsonl; None where it is not one of ours: a step, and names of numbers."""
    try:
        numbers: Any = json.loads(line)
        step = numbers["step"]
        ours = type(step) is int and 0 <= step < 2**63
        for name, number in numbers.items():
            ours = ours and name.isidentifier() and name.isascii()
            ours = ours and type(number) in (int, float) and abs(float(number)) < 1e100
        return numbers if ours else None
    except (ValueError, TypeError, KeyError, OverflowError, AttributeError, RecursionError):
        return None


def open_tensorboard(run: Path, first: int) -> "SummaryWriter":
    """Events that go on with the step `first`; earlier events of that step and on do not count."""
    from torch.utils.tensorboard import SummaryWriter  # here, for runs that do without it

    return SummaryWriter(str(run), purge_step=first)


def is_until(line: str, step: int, evaluated: int) -> bool:
    """Whether a line of metrics.jsonl is whole and speaks of `step` or an earlier one, or of an
    evaluation no later than `evaluated`."""
    numbers = parse(line) if line.endswith("\n") else None
    return numbers is not None and numbers["step"] <= (evaluated if "val_loss" in numbers else step)


def progress_bar(step: int, max_steps: int, silent: bool = False) -> "tqdm[Any]":
    """Step, loss, tokens per second and time left, on one line; silent where nobody watches."""
    return tqdm(
        total=max_steps,
        initial=step,
        bar_format="step {n_fmt}/{total_fmt} |{bar:24}| {desc}{remaining} left",
        leave=False,
        disable=silent or None,
    )
