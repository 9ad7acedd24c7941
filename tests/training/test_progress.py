"""What was measured is on the disk once, in metrics.jsonl and in TensorBoard."""

import json
import time
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from training.progress import Metrics


def read(run: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_lines_and_events_say_the_same(tmp_path: Path) -> None:
    with Metrics(tmp_path, 0, tensorboard=True) as metrics:
        metrics.write(1, {"train_loss": 3.5, "learning_rate": 0.1})
        metrics.write(2, {"val_loss": 3.25}, sample="two\nlines")
    assert read(tmp_path) == [
        {"step": 1, "train_loss": 3.5, "learning_rate": 0.1},
        {"step": 2, "val_loss": 3.25},
    ]
    events = EventAccumulator(str(tmp_path)).Reload()
    assert [(e.step, e.value) for e in events.Scalars("train_loss")] == [(1, 3.5)]
    assert [(e.step, e.value) for e in events.Scalars("val_loss")] == [(2, 3.25)]
    (text,) = events.Tensors("sample/text_summary")
    assert text.tensor_proto.string_val[0] == b"    two\n    lines\n"


CUT = ["", '{"step": 3, "train', '{"step": 2, "train_loss": 9.0}', '[1]\n{"a": 1}\n\udcff\n']


@pytest.mark.parametrize("cut", CUT)
def test_going_on_takes_back_what_came_after_the_checkpoint(tmp_path: Path, cut: str) -> None:
    with Metrics(tmp_path, 0, tensorboard=True) as metrics:
        for step in (1, 2, 3, 4):
            metrics.write(step, {"train_loss": float(step)})
    with open(tmp_path / "metrics.jsonl", "a", errors="surrogateescape") as file:
        file.write(cut)  # a line that a killed process did not finish
    time.sleep(1)  # TensorBoard orders files by the second of their names; no run resumes faster
    with Metrics(tmp_path, 2, tensorboard=True) as metrics:
        for step in (3, 4):
            metrics.write(step, {"train_loss": float(10 * step)})
    expected = [(1, 1.0), (2, 2.0), (3, 30.0), (4, 40.0)]
    assert [(line["step"], line["train_loss"]) for line in read(tmp_path)] == expected
    events = EventAccumulator(str(tmp_path)).Reload()
    assert [(e.step, e.value) for e in events.Scalars("train_loss")] == expected


def test_tensorboard_can_be_left_out(tmp_path: Path) -> None:
    with Metrics(tmp_path, 0, tensorboard=False) as metrics:
        metrics.write(1, {"train_loss": 3.5})
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]
