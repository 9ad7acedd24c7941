"""What a user sees of a run while it trains: lines, the progress bar, and metrics on the disk."""

import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tqdm import tqdm

from configs.load import Config
from run.metrics import Metrics
from training.pace import Pace
from training.runtime import StopSignal
from training.state import TrainState
from training.step import Evaluation

SIGPIPE = 13  # by number, because Windows has no such signal
SAMPLE_WIDTH = 90  # samples are folded there, to stand apart from the rest


class Logger:
    """Prints and writes what was measured, and keeps the clock; silent in all processes but one."""

    def __init__(
        self,
        run: Path,
        config: Config,
        state: TrainState,
        pace: Pace,
        baselines: dict[str, float],
        stop: StopSignal,
        silent: bool = False,
    ) -> None:
        """
        Args:
            state: where the run stands; its `seconds` are kept up to date here.
            pace: what is known of it; it is told of every step and evaluation.
            baselines: losses of simple models, in nats per token.
            stop: is told when nobody reads what is printed any more.
        """
        self.settings, self.unit = config.train, config.data.unit
        self.tokens_per_step = config.train.batch_size * config.model.block_size
        self.run, self.state, self.pace, self.baselines = run, state, pace, baselines
        self.stop, self.silent = stop, silent
        self.began = time.perf_counter() - state.seconds
        self.evaluation_began = 0.0
        self.steps, self.busy = 0, 0.0  # updates since the last line of metrics, and their seconds
        self.shown = ""  # loss and speed, for the bar

    def __enter__(self) -> "Logger":
        state, settings = self.state, self.settings
        with ExitStack() as files:
            self.metrics = None
            if not self.silent:
                self.metrics = files.enter_context(
                    Metrics(self.run, state.step, state.last_eval_step, settings.tensorboard)
                )
            self.bar = files.enter_context(
                tqdm(
                    total=settings.max_steps,
                    initial=state.step,
                    bar_format="step {n_fmt}/{total_fmt} |{bar:24}| {desc}",
                    leave=False,
                    disable=self.silent or None,  # None: where nobody watches
                )
            )
            self.files = files.pop_all()
        to_beat = ", ".join(f"{name} {nats:.4f}" for name, nats in self.baselines.items())
        self.print(f"to beat: {to_beat} nats/{self.unit}")
        return self

    def __exit__(self, *error: Any) -> None:
        self.files.__exit__(*error)

    def flush(self) -> None:
        """Have all metrics on the disk."""
        if self.metrics is not None:
            self.metrics.flush()

    def print(self, line: str) -> None:
        """Print a line above the progress bar."""
        if self.silent:
            return
        try:
            self.bar.write(line)
        except OSError:  # the reader of a pipe has left, or the terminal is gone: save and stop
            self.stop.number = SIGPIPE

    def step(self, lr_scale: float, grad_norm: float, seconds: float) -> None:
        """After an update, which took so many seconds."""
        state, settings = self.state, self.settings
        state.seconds = time.perf_counter() - self.began
        self.steps, self.busy = self.steps + 1, self.busy + seconds
        self.pace.saw_step(seconds)
        if state.step % settings.log_every == 0 or state.step == settings.max_steps:
            speed = self.steps * self.tokens_per_step / self.busy
            self.steps, self.busy = 0, 0.0
            self.shown = f"loss {state.train_loss:.3f}, {speed:,.0f} tokens/s"
            if self.metrics is not None and state.train_loss is not None:
                numbers = {
                    "train_loss": state.train_loss,
                    "learning_rate": lr_scale * settings.adamw_learning_rate,
                    "grad_norm": grad_norm,
                    "tokens_per_second": speed,
                    "seconds": state.seconds,
                }
                self.metrics.write(state.step, numbers)
        self.describe(self.shown)
        self.bar.update()

    def describe(self, doing: str) -> None:
        """Say in the bar what is done, and how long it will take; shown when it is next drawn."""
        left = self.pace.left(self.settings, self.state)
        until = "" if left is None else f"{tqdm.format_interval(left)} left"
        self.bar.set_description_str(", ".join(filter(None, (doing, until))), refresh=False)

    def evaluating(self) -> None:
        """Before an evaluation."""
        self.evaluation_began = time.perf_counter()
        self.describe("evaluating")
        self.bar.refresh()

    def evaluation(self, result: Evaluation, sample: str) -> None:
        """After an evaluation."""
        state = self.state
        now = time.perf_counter()
        state.seconds = now - self.began
        self.pace.saw_evaluation(now - self.evaluation_began)
        self.describe(self.shown)
        if self.metrics is not None:
            numbers = {
                "val_loss": result.val_loss,
                "bits_per_char": result.bits_per_char,
                "seconds": state.seconds,
            }
            self.metrics.write(state.step, numbers, sample)
        beaten = [(n, name) for name, n in self.baselines.items() if result.val_loss < n]
        verdict = "beats {1} {0:.4f}".format(*min(beaten)) if beaten else "beats nothing yet"
        best = f"  (best {state.best_val_loss:.4f})" if state.evals_since_best else ""
        self.print(
            f"step {state.step:>{len(str(self.settings.max_steps))}}"
            f"  validation {result.describe(self.unit)}  training {state.train_loss:.4f}"
            f"  {verdict}{best}"
        )
        for line in sample.splitlines():
            shown = "".join(c if c.isprintable() else "\ufffd" for c in line.expandtabs())
            for start in range(0, len(shown) or 1, SAMPLE_WIDTH):
                self.print(f"    | {shown[start : start + SAMPLE_WIDTH]}")
