"""The output of training: printed lines, a progress bar, metrics.jsonl and TensorBoard events."""

import json
import threading
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO, Any

from tqdm import tqdm

from common.atomic import write_atomically
from common.errors import printable
from configs.config import Config
from training.checkpoint import find_snapshots
from training.optim import get_lr_scale
from training.step import Evaluation, TrainState

Numbers = dict[str, Any]  # by name; `step` is one of them


class Log(ExitStack):
    """Prints and writes the measurements of the first process. As an ExitStack, it closes its files
    and the progress bar."""

    def __init__(
        self,
        folder: Path | None,
        config: Config,
        state: TrainState,
        baselines: dict[str, float],
        unit: str,
    ) -> None:
        """
        Args:
            folder: the run's folder; None in a process that neither writes nor prints.
            state: the progress of the run, which is only read.
            baselines: losses of simple models, in nats per token.
            unit: the name of a token.
        """
        super().__init__()
        self.config, self.state, self.baselines, self.unit = config, state, baselines, unit
        self.width = len(str(config.train.max_steps))  # of a step, when printed
        self.tenths = state.step * 10 // config.train.max_steps  # of the run that are printed
        self.is_open = True  # false when the pipe or the terminal that it prints to is closed
        self.logged = state.step, 0.0  # the step and the seconds at the last line of metrics
        self.file: IO[str] | None = None
        self.events: Any = None  # TensorBoard's writer
        if folder:
            self.open_metrics(folder)
        self.bar = self.enter_context(
            tqdm(
                total=config.train.max_steps,
                initial=state.step,
                bar_format="step {n_fmt}/{total_fmt} |{bar:24}| {remaining} left{postfix}",
                smoothing=0,
                leave=False,
                disable=folder is None or None,  # None: if standard error is not a terminal
            )
        )
        shown = {"uniform", "in-context unigram", "bigram", "3-gram", "5-gram", [*baselines][-1]}
        to_beat = ", ".join(f"{name} {n:.4f}" for name, n in baselines.items() if name in shown)
        self.print(f"to beat: {to_beat} nats/{unit}")

    def open_metrics(self, folder: Path) -> None:
        """Continue the metrics and the snapshots from `state`: remove those of later steps, which
        will be repeated."""
        state = self.state
        for step, snapshot in find_snapshots(folder).items():
            if step > state.step:
                snapshot.unlink()
        kept = [
            numbers
            for numbers in read_metrics(folder)
            if numbers["step"] <= (state.last_eval_step if "val_loss" in numbers else state.step)
            and "baselines" not in numbers
        ]
        path = folder / "metrics.jsonl"
        first = {"step": 0, "baselines": self.baselines}
        write_atomically(path, "".join(json.dumps(n) + "\n" for n in [first, *kept]).encode())
        self.file = self.enter_context(path.open("a", buffering=1))
        if self.config.train.tensorboard:
            # Imported here, because runs without TensorBoard need not wait for it.
            from torch.utils.tensorboard import SummaryWriter

            # On a full disk, its thread would print a traceback; `flush` also raises the error
            # here.
            self.callback(setattr, threading, "excepthook", threading.excepthook)
            threading.excepthook = lambda _: None
            writer = SummaryWriter(str(folder), purge_step=state.step + 1)
            self.events = self.enter_context(writer)

    def print(self, line: str) -> None:
        """Print a line above the progress bar."""
        try:
            self.bar.write(line)
        except OSError:
            self.is_open = False

    def write(self, numbers: Numbers) -> None:
        """Add a line to the metrics, and a point in TensorBoard for each number."""
        step, numbers = self.state.step, numbers | {"seconds": self.state.seconds}
        if self.file is not None:
            self.file.write(json.dumps({"step": step} | numbers) + "\n")
        if self.events is not None:
            for name, number in numbers.items():
                self.events.add_scalar(name, number, step)
            self.events.flush()

    def training(self, seconds: float, grad_norm: float) -> None:
        """Log the result of the last training steps.

        Args:
            seconds: what all steps since the start of the log took.
            grad_norm: of the last one.
        """
        state, config = self.state, self.config
        if state.step % config.train.log_every == 0:
            (step, before), self.logged = self.logged, (state.step, seconds)
            tokens = (state.step - step) * config.train.batch_size * config.model.block_size
            speed = tokens / (seconds - before)
            progress = f"loss {state.train_loss:.3f}, {speed:,.0f} tokens/s"
            self.bar.set_postfix_str(progress, refresh=False)
            lr_scale = get_lr_scale(state.step - 1, config.train)
            self.write(
                {
                    "train_loss": state.train_loss,
                    "learning_rate": lr_scale * config.train.adamw_learning_rate,
                    "grad_norm": grad_norm,
                    "tokens_per_second": speed,
                }
            )
        if self.bar.disable and state.step * 10 // config.train.max_steps > self.tenths:
            self.tenths = state.step * 10 // config.train.max_steps
            if state.step % config.train.eval_every and state.step < config.train.max_steps:
                self.print(f"step {state.step:>{self.width}}  training {state.train_loss:.4f}")
        self.bar.update(state.step - self.bar.n)

    def evaluation(self, results: dict[str, Evaluation]) -> None:
        """Log the evaluation of each split; a task also has training sequences."""
        state, accuracy, result = self.state, "", results["validation"]
        numbers = {"val_loss": result.loss, "bits_per_char": result.bits_per_char}
        if result.accuracy is not None:
            trained = results["training"].accuracy or 0.0
            numbers |= {"accuracy": result.accuracy, "train_accuracy": trained}
            accuracy = f"  accuracy {result.accuracy:.1%} (training {trained:.1%})"
        self.write(numbers)
        beaten = [(n, name) for name, n in self.baselines.items() if result.loss < n]
        verdict = "beats the {1} {0:.4f}".format(*min(beaten)) if beaten else "beats nothing yet"
        self.print(
            f"step {state.step:>{self.width}}"
            f"  validation {result.in_units(self.unit)}"
            f"  training {state.train_loss:.4f}{accuracy}  {verdict}"
        )

    def sample(self, text: str) -> None:
        """Print a sample, and show it in TensorBoard."""
        if self.events is not None and text:
            self.events.add_text("sample", f"    {text}".replace("\n", "\n    "), self.state.step)
        for line in text.splitlines():
            self.print(f"    | {printable(line)}")


def read_metrics(folder: Path) -> list[Numbers]:
    """Read metrics.jsonl, one dictionary per line; skip a line that is not a measurement."""
    path, numbers = folder / "metrics.jsonl", list[Numbers]()
    for line in path.read_bytes().splitlines() if path.exists() else []:
        with suppress(ValueError):
            read = json.loads(line)
            if isinstance(read, dict) and isinstance(read.get("step"), int):
                numbers.append(read)
    return numbers
