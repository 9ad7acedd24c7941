"""The numbers of a run on the disk: metrics.jsonl, one JSON object a line, and TensorBoard."""

import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from common.atomic import sync, write_atomically
from common.errors import UserError


class Events:
    """A file of TensorBoard events.

    TensorBoard's own SummaryWriter writes from a thread, where nobody can catch a full disk. Here
    its record writer is called directly, and errors are raised where they happen.
    """

    def __init__(self, run: Path, first: int) -> None:
        """Earlier events of the step `first` and later steps count no more."""
        # Here, because importing it takes a second that runs without it save.
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.summary.writer.record_writer import RecordWriter

        self.Event = Event
        name = f"events.out.tfevents.{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}"
        self.file = open(run / name, "ab")  # noqa: SIM115 - closed by close
        self.records = RecordWriter(self.file)
        self.add(file_version="brain.Event:2")
        self.add(step=first, session_log=SessionLog(status=SessionLog.START))

    def add(self, **event: Any) -> None:
        """Write one event."""
        self.records.write(self.Event(wall_time=time.time(), **event).SerializeToString())

    def add_numbers(self, step: int, numbers: dict[str, float]) -> None:
        """A point on the curve of each number."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [Summary.Value(tag=tag, simple_value=number) for tag, number in numbers.items()]
        self.add(step=step, summary=Summary(value=values))

    def add_text(self, step: int, tag: str, text: str) -> None:
        """A text, shown as it is."""
        from torch.utils.tensorboard.summary import text as text_summary

        indented = "".join(f"    {line}\n" for line in text.splitlines())
        self.add(step=step, summary=text_summary(tag, indented))


class Metrics:
    """Writes the numbers of a run."""

    def __init__(self, run: Path, step: int, last_eval_step: int, tensorboard: bool) -> None:
        """Continue after `step`: what was written of later steps is removed, and so is an
        evaluation after the step `last_eval_step`, which was stopped or will be repeated."""
        self.run, self.path = run, run / "metrics.jsonl"
        kept = []
        if self.path.exists():
            lines = self.path.read_text(errors="replace").splitlines(keepends=True)
            kept = [line for line in lines if is_until(line, step, last_eval_step)]
            write_atomically(self.path, "".join(kept).encode())
        self.files: list[IO[Any]] = [open(self.path, "a", buffering=1)]  # noqa: SIM115
        self.events = None
        with ExitStack() as on_error, self.named_errors():
            on_error.push(self)  # closes the files
            if tensorboard:
                # Events are removed by whole steps; what counts of the first of them is written
                # again.
                first = step + 1 if last_eval_step == step else step
                self.events = Events(run, first)
                self.files.append(self.events.file)
                for numbers in map(json.loads, kept):
                    if numbers["step"] >= first:
                        self.events.add_numbers(numbers.pop("step"), numbers)
            on_error.pop_all()

    def write(self, step: int, numbers: dict[str, float], sample: str = "") -> None:
        """Add a line, and for each number a point in TensorBoard; a sample goes there as text.

        Raises:
            UserError: when it cannot be written.
        """
        with self.named_errors():
            self.files[0].write(json.dumps({"step": step, **numbers}) + "\n")
            if self.events is not None:
                self.events.add_numbers(step, numbers)
                if sample:
                    self.events.add_text(step, "sample", sample)
                self.events.file.flush()

    def flush(self) -> None:
        """Have all of it on the disk; called before a checkpoint, so that none is ahead of it.

        Raises:
            UserError: when it cannot be written.
        """
        with self.named_errors():
            for file in self.files:
                sync(file)

    @contextmanager
    def named_errors(self) -> Iterator[None]:
        """A disk that takes no more ends in one line."""
        try:
            yield
        except OSError as error:
            raise UserError(f"could not write to {self.run}: {error.strerror}") from error

    def __enter__(self) -> "Metrics":
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        for file in self.files:
            # An error that is under way says more than one on closing.
            with self.named_errors() if kind is None else suppress(OSError):
                file.close()


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


def is_until(line: str, step: int, last_eval_step: int) -> bool:
    """Whether a line of metrics.jsonl is whole and speaks of `step` or an earlier one, or of an
    evaluation no later than `last_eval_step`."""
    numbers = parse(line) if line.endswith("\n") else None
    if numbers is None:
        return False
    return bool(numbers["step"] <= (last_eval_step if "val_loss" in numbers else step))
