"""What was measured is on the disk once, in metrics.jsonl and in TensorBoard."""

import errno
import io
import os
import time
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from common.errors import UserError
from run.log import Metrics, read_metrics


def test_lines_and_events_say_the_same(tmp_path: Path) -> None:
    with Metrics(tmp_path, 0, 0, tensorboard=True) as metrics:
        metrics.write(1, {"train_loss": 3.5, "learning_rate": 0.1})
        metrics.write(2, {"val_loss": 3.25}, sample="two\nlines")
    assert read_metrics(tmp_path) == [
        {"step": 1, "train_loss": 3.5, "learning_rate": 0.1},
        {"step": 2, "val_loss": 3.25},
    ]
    events = EventAccumulator(str(tmp_path)).Reload()
    assert [(e.step, e.value) for e in events.Scalars("train_loss")] == [(1, 3.5)]
    assert [(e.step, e.value) for e in events.Scalars("val_loss")] == [(2, 3.25)]
    (text,) = events.Tensors("sample/text_summary")
    assert text.tensor_proto.string_val[0] == b"    two\n    lines\n"


CUT = ["", '{"step": 3, "train', '{"step": 2, "train_loss": 9.0}', '[1]\n{"a": 1}\n\udcff\n']


def a_second_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """TensorBoard orders files by the second of their names; no run resumes faster."""
    later = time.time() + 1
    monkeypatch.setattr(time, "time", lambda: later)


@pytest.mark.parametrize("cut", CUT)
def test_going_on_takes_back_what_came_after_the_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cut: str
) -> None:
    with Metrics(tmp_path, 0, 0, tensorboard=True) as metrics:
        for step in (1, 2, 3, 4):
            metrics.write(step, {"train_loss": float(step)})
    with open(tmp_path / "metrics.jsonl", "a", errors="surrogateescape") as file:
        file.write(cut)  # a line that a killed process did not finish
    a_second_passes(monkeypatch)
    with Metrics(tmp_path, 2, 0, tensorboard=True) as metrics:
        for step in (3, 4):
            metrics.write(step, {"train_loss": float(10 * step)})
    expected = [(1, 1.0), (2, 2.0), (3, 30.0), (4, 40.0)]
    assert [(line["step"], line["train_loss"]) for line in read_metrics(tmp_path)] == expected
    events = EventAccumulator(str(tmp_path)).Reload()
    assert [(e.step, e.value) for e in events.Scalars("train_loss")] == expected


def test_an_evaluation_that_comes_again_counts_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkpoint of step 2 was saved before its evaluation, which was then made, and lost."""
    with Metrics(tmp_path, 0, 0, tensorboard=True) as metrics:
        for step in (1, 2):
            metrics.write(step, {"train_loss": float(step)})
            metrics.write(step, {"val_loss": 3.0 * step})
    a_second_passes(monkeypatch)
    with Metrics(tmp_path, 2, 1, tensorboard=True) as metrics:
        metrics.write(2, {"val_loss": 6.0})
        metrics.write(3, {"train_loss": 3.0})
    events = EventAccumulator(str(tmp_path)).Reload()
    for key, expected in (("val_loss", {1: 3.0, 2: 6.0}), ("train_loss", {1: 1.0, 2: 2.0, 3: 3.0})):
        lines = [(n["step"], n[key]) for n in read_metrics(tmp_path) if key in n]
        assert lines == [(e.step, e.value) for e in events.Scalars(key)] == list(expected.items())


def test_what_is_read_is_whole_and_of_ours(tmp_path: Path) -> None:
    lines = ['{"step": 1, "val_loss": 2.5}', "[1]", '{"step": "x"}', '{"step": 2, "val_loss": []}']
    lines += ["[" * 100_000, '{"step": 3, "val_loss"']
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines))
    assert read_metrics(tmp_path) == [{"step": 1, "val_loss": 2.5}]
    assert read_metrics(tmp_path / "absent") == []


def test_a_full_disk_is_one_line(tmp_path: Path) -> None:
    class Full(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    full = f"could not write to {tmp_path}: No space left on device"
    with Metrics(tmp_path, 0, 0, tensorboard=False) as metrics:
        metrics.file.close()
        metrics.file = Full()
        with pytest.raises(UserError, match=full):
            metrics.write(1, {"train_loss": 1.0})


def test_tensorboard_can_be_left_out(tmp_path: Path) -> None:
    with Metrics(tmp_path, 0, 0, tensorboard=False) as metrics:
        metrics.write(1, {"train_loss": 3.5})
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]
