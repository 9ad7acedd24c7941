"""What a user is told while a run trains, number by number."""

import dataclasses
import io
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from configs.load import Config
from model.config import ModelConfig
from run.log import Logger
from run.metrics import read_metrics
from training.config import TrainConfig
from training.pace import WARMUP, Pace
from training.runtime import StopSignal
from training.state import TrainState
from training.step import Evaluation

TRAIN = TrainConfig(
    max_steps=7, batch_size=6, log_every=3, learning_rate=0.5, optimizer="adamw", tensorboard=False
)
CONFIG = Config(model=ModelConfig(block_size=10), train=TRAIN)  # 60 tokens in a step
BASELINES = {"uniform": 4.0, "unigram": 3.0, "bigram": 2.0}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Its `now` is the time."""
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr("run.log.time", SimpleNamespace(perf_counter=lambda: clock.now))
    return clock


def logger(run: Path, state: TrainState, stop: StopSignal | None = None, **options: Any) -> Logger:
    config = dataclasses.replace(CONFIG, train=dataclasses.replace(TRAIN, **options))
    return Logger(run, config, state, Pace(1.0), BASELINES, StopSignal() if stop is None else stop)


def test_metrics_are_of_the_steps_since_the_last_line(
    tmp_path: Path, clock: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Speed is of the updates alone; the clock runs on over sessions, and through evaluations."""
    state, synced = TrainState(step=1, seconds=50.0, train_loss=9.0), list[Any]()
    monkeypatch.setattr("run.metrics.sync", synced.append)
    with logger(tmp_path, state) as log:
        for step in range(2, 8):
            clock.now += 10.0
            state.step, state.train_loss = step, step / 4
            log.step(lr_scale=step / 8, grad_norm=step * 2.0, seconds=0.5 if step < 4 else 0.25)
            assert state.seconds == 50 + 10 * (step - 1)
        clock.now += 100.0
        state.record(2.5)
        log.evaluation(Evaluation(2.5, 1.25), "")
        assert not synced
        log.flush()
        assert synced, "all of it is on the disk"
    names = ("step", "train_loss", "learning_rate", "grad_norm", "tokens_per_second", "seconds")
    assert read_metrics(tmp_path) == [
        dict(zip(names, (3, 0.75, 0.1875, 6.0, 120.0, 70.0), strict=True)),
        dict(zip(names, (6, 1.5, 0.375, 12.0, 240.0, 100.0), strict=True)),
        dict(zip(names, (7, 1.75, 0.4375, 14.0, 240.0, 110.0), strict=True)),  # the last step
        {"step": 7, "val_loss": 2.5, "bits_per_char": 1.25, "seconds": 210.0},
    ]


def test_an_evaluation_is_shown_beside_what_it_beats(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = TrainState(step=5, train_loss=2.125)
    sample = "first\tline\nbell\x07\n\n" + "x" * 100
    with logger(tmp_path, state, max_steps=1000) as log:
        for loss, shown in ((4.5, ""), (2.5, sample), (3.0, ""), (1.5, "")):
            state.record(loss)
            log.evaluation(Evaluation(loss, loss / 2), shown)
    step = "step    5  validation "
    assert capsys.readouterr().out.splitlines() == [
        "to beat: uniform 4.0000, unigram 3.0000, bigram 2.0000 nats/char",
        f"{step}4.5000 nats/char  2.250 bits/char  training 2.1250  beats nothing yet",
        f"{step}2.5000 nats/char  1.250 bits/char  training 2.1250  beats unigram 3.0000",
        "    | first   line",
        "    | bell\ufffd",
        "    | ",
        "    | " + "x" * 90,
        "    | " + "x" * 10,
        f"{step}3.0000 nats/char  1.500 bits/char  training 2.1250  beats uniform 4.0000"
        "  (best 2.5000)",
        f"{step}1.5000 nats/char  0.750 bits/char  training 2.1250  beats bigram 2.0000",
    ]


def test_other_processes_say_and_write_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = TrainState(step=3, train_loss=1.0)
    with Logger(tmp_path, CONFIG, state, Pace(1.0), BASELINES, StopSignal(), silent=True) as log:
        log.step(1.0, 1.0, 0.5)
        log.evaluating()
        log.evaluation(Evaluation(1.0, 1.0), "a sample")
        log.flush()
    assert capsys.readouterr() == ("", "") and not list(tmp_path.iterdir())


def test_a_pipe_that_nobody_reads_stops_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `python train.py | head -1` does: it saves, and ends with 128 + SIGPIPE."""
    stop = StopSignal()
    with logger(tmp_path, TrainState(step=3, train_loss=1.0), stop) as log:
        assert not stop

        def closed(text: str) -> int:
            raise BrokenPipeError

        monkeypatch.setattr(sys.stdout, "write", closed)
        log.evaluation(Evaluation(1.0, 1.0), "")
        monkeypatch.undo()
    assert stop and stop.exit_code == 141


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_bar_counts_from_where_the_run_stands_and_says_what_is_left(
    tmp_path: Path, clock: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of seven steps of 50 seconds, and an evaluation: as one step before it was seen."""
    terminal, state = Terminal(), TrainState(step=4, train_loss=1.0)
    monkeypatch.setattr(sys, "stderr", terminal)

    def shown() -> str:
        return terminal.getvalue().split("|")[-1].strip()

    with logger(tmp_path, state, log_every=1) as log:
        assert (log.bar.n, log.bar.total) == (4, 7) and "step 4/7 |" in terminal.getvalue()
        state.step, state.train_loss = 5, 1.25
        log.step(1.0, 1.0, 50.0)
        log.evaluating()
        assert shown() == "evaluating"
        for _ in range(WARMUP):
            log.pace.saw_step(50.0)
        log.evaluating()
        assert shown() == "evaluating, 02:30 left"
        clock.now += 20.0
        log.evaluation(Evaluation(1.0, 1.0), "")
        log.bar.refresh()
        assert "step 5/7 |" in terminal.getvalue()
        assert shown() == "loss 1.250, 1 tokens/s, 02:00 left"
