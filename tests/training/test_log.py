"""What a run prints, and what it logs in metrics.jsonl and TensorBoard."""

import dataclasses
import math
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from configs.config import Config, ModelConfig, TrainConfig
from training.evaluate import Evaluation
from training.folder import read_metrics, rewind
from training.log import Log
from training.state import TrainState

TRAIN = TrainConfig(
    max_steps=7, batch_size=6, log_every=3, learning_rate=0.5, warmup_steps=8, tensorboard=False
)
CONFIG = Config(model=ModelConfig(block_size=10), train=TRAIN)  # 60 tokens per step
BASELINES = {"uniform": 4.0, "unigram": 3.0, "bigram": 2.0, "7-gram": 1.25}


def evaluation(loss: float) -> Evaluation:
    """Return an evaluation of one token, with half the loss in bits per character."""
    return Evaluation(torch.empty(0), loss, tokens=1, characters=2 / math.log(2))


def logger(run: Path, state: TrainState, **options: Any) -> Log:
    config = dataclasses.replace(CONFIG, train=dataclasses.replace(TRAIN, **options))
    tokenizer = SimpleNamespace(unit="char")
    batches: Any = SimpleNamespace(baselines=BASELINES, tokenizer=tokenizer)
    return Log(run, config, state, batches)


def events(run: Path, key: str) -> list[tuple[int, float]]:
    scalars = EventAccumulator(str(run)).Reload().Scalars(key)
    return [(event.step, event.value) for event in scalars]


def test_evaluation_is_printed_with_the_best_baseline_it_beats(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = TrainState(step=5, seconds=70.0, train_loss=2.125)
    sample = "first line\nbell\x07\n\nthe end"
    with logger(tmp_path, state, max_steps=1000, tensorboard=True) as log:
        for loss, shown in ((4.5, ""), (1.5, sample)):
            state.record(loss)
            log.evaluation({"validation": evaluation(loss)})
            log.sample(shown)
        validation = dataclasses.replace(evaluation(3.0), right=3, answers=4)
        training = dataclasses.replace(evaluation(9.0), right=1, answers=8)
        log.evaluation({"validation": validation, "training": training})
    step = "step    5  validation "
    assert capsys.readouterr().out.splitlines() == [
        "to beat: uniform 4.0000, bigram 2.0000, 7-gram 1.2500 nats/char",
        f"{step}4.5000 nats/char  2.250 bits/char  training 2.1250  beats nothing yet",
        f"{step}1.5000 nats/char  0.750 bits/char  training 2.1250  beats the bigram 2.0000",
        "    | first line",
        "    | bell\\x07",
        "    | ",
        "    | the end",
        f"{step}3.0000 nats/char  1.500 bits/char  training 2.1250  accuracy 75.0% (training 12.5%)"
        "  beats the uniform 4.0000",
    ]
    line = read_metrics(tmp_path)[-1]
    assert (line["bits_per_char"], line["seconds"]) == (pytest.approx(1.5), 70.0)
    for key, accuracy in (("accuracy", 0.75), ("train_accuracy", 0.125)):
        assert line[key] == accuracy
        assert events(tmp_path, key) == [(5, accuracy)]


# --- files ---------------------------------------------------------------------------------------


def test_resumed_log_has_no_missing_or_repeated_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkpoint is of step 2, before its evaluation. The log has later steps."""
    state = TrainState()
    with logger(tmp_path, state, tensorboard=True) as log:
        for state.step in (1, 2, 3, 4):
            log.write({"val_loss": -state.step})
            assert events(tmp_path, "val_loss")[-1][0] == state.step, "while it trains"
    now = time.time() + 2  # TensorBoard orders files by the time in their names, in seconds
    monkeypatch.setattr(time, "time", lambda: now)
    state = TrainState(step=2, last_eval_step=1)
    rewind(tmp_path, state)
    with logger(tmp_path, state, tensorboard=True) as log:
        log.write({"val_loss": -2})
        for state.step in (3, 4):
            log.write({"val_loss": -10 * state.step})
    lines = [(line["step"], line["val_loss"]) for line in read_metrics(tmp_path)[1:]]
    assert lines == [(1, -1), (2, -2), (3, -30), (4, -40)]
    # The repeated evaluation appears twice in TensorBoard, with the same loss.
    assert events(tmp_path, "val_loss") == sorted([*lines, (2, -2)])
    assert [line for line in read_metrics(tmp_path) if "baselines" in line] == [
        {"step": 0, "baselines": BASELINES}
    ]
