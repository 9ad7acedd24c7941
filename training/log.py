"""The output of training: printed lines, a progress bar, metrics.jsonl and TensorBoard events."""

import json
import threading
from pathlib import Path
from typing import IO, Any

from tqdm import tqdm

from common.errors import printable
from configs.config import Config
from data.batches import Batches
from training.evaluate import Evaluation
from training.folder import Numbers
from training.state import TrainState


class Log:
    """Prints and appends the measurements of the first process, in a `with` block."""

    def __init__(
        self, folder: Path | None, config: Config, state: TrainState, batches: Batches
    ) -> None:
        """
        Args:
            folder: the run's folder; None in a process that neither writes nor prints.
            state: the progress of the run, which is only read.
        """
        self.config, self.state = config, state
        self.baselines, self.unit = batches.baselines, batches.tokenizer.unit
        self.steps = config.train.max_steps or 0  # of the run, as far as they are known
        self.tenths = state.step * 10 // (self.steps or 1)  # of the run that are printed
        self.is_open = True  # false when the pipe or the terminal that it prints to is closed
        self.logged = state.step, 0.0  # the step and the seconds at the last line of metrics
        self.file: IO[str] | None = None
        self.events: Any = None  # TensorBoard's writer
        self.excepthook = threading.excepthook
        self.bar = tqdm(
            initial=state.step,
            bar_format="step {n_fmt}/{total_fmt} |{bar:24}| {remaining} left{postfix}",
            smoothing=0,
            leave=False,
            disable=folder is None or None,  # None: if standard error is not a terminal
        )
        if folder:
            self.file = (folder / "metrics.jsonl").open("a", buffering=1)
            if self.file.tell() == 0:
                self.file.write(json.dumps({"step": 0, "baselines": self.baselines}) + "\n")
        if folder and config.train.tensorboard:
            # Imported here, because runs without TensorBoard need not wait for it.
            from torch.utils.tensorboard import SummaryWriter

            # On a full disk, its thread would print a traceback; `flush` also raises the error
            # here.
            threading.excepthook = lambda _: None
            self.events = SummaryWriter(str(folder), purge_step=state.step + 1)
        named = {"uniform", "in-context unigram", "bigram", "3-gram", "5-gram"}
        shown = {*named, [*self.baselines][-1]}
        to_beat = ", ".join(f"{k} {n:.4f}" for k, n in self.baselines.items() if k in shown)
        self.print(f"to beat: {to_beat} nats/{self.unit}")

    def __enter__(self) -> "Log":
        return self

    def __exit__(self, *error: object) -> None:
        self.bar.close()
        for file in (self.events, self.file):
            if file is not None:
                file.close()
        threading.excepthook = self.excepthook

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

    def training(self, seconds: float, grad_norm: float, lr_scale: float) -> None:
        """Log the result of the last training steps.

        Args:
            seconds: what all steps since the start of the log took.
            grad_norm: of the last one.
            lr_scale: see `get_lr_scale`.
        """
        state, plan = self.state, self.config.train
        if state.step % plan.log_every == 0:
            (step, before), self.logged = self.logged, (state.step, seconds)
            tokens = (state.step - step) * plan.batch_size * self.config.model.block_size
            speed = tokens / (seconds - before)
            progress = f"loss {state.train_loss:.3f}, {speed:,.0f} tokens/s"
            self.bar.set_postfix_str(progress, refresh=False)
            self.write(
                {
                    "train_loss": state.train_loss,
                    "learning_rate": lr_scale * plan.adamw_learning_rate,
                    "grad_norm": grad_norm,
                    "tokens_per_second": speed,
                }
            )
        if self.bar.disable and self.steps and state.step * 10 // self.steps > self.tenths:
            self.tenths = state.step * 10 // self.steps
            if state.step % plan.eval_every and state.step < self.steps:
                self.print(f"{self.step}  training {state.train_loss:.4f}")
        self.bar.total = self.steps or None
        self.bar.update(state.step - self.bar.n)

    @property
    def step(self) -> str:
        """The step as it is printed."""
        return f"step {self.state.step:>{len(str(self.steps))}}"

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
        training = "" if state.train_loss is None else f"  training {state.train_loss:.4f}"
        validation = f"validation {result.in_units(self.unit)}"
        self.print(f"{self.step}  {validation}{training}{accuracy}  {verdict}")

    def sample(self, text: str) -> None:
        """Print a sample, and show it in TensorBoard."""
        if self.events is not None and text:
            self.events.add_text("sample", f"    {text}".replace("\n", "\n    "), self.state.step)
        for line in text.splitlines():
            self.print(f"    | {printable(line)}")
