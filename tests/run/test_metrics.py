"""What was measured is on the disk once, in metrics.jsonl and in TensorBoard; or in one line why
not."""

import json
import re
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from common.errors import UserError
from run.metrics import Metrics, parse, read_metrics

Points = list[tuple[int, float]]


def lines_of(run: Path, key: str) -> Points:
    return [(line["step"], line[key]) for line in read_metrics(run) if key in line]


def events_of(run: Path, key: str) -> Points:
    events = EventAccumulator(str(run)).Reload()
    return [(event.step, event.value) for event in events.Scalars(key)]


def test_lines_and_events_say_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[Any] = []
    monkeypatch.setattr("run.metrics.sync", synced.append)
    with Metrics(tmp_path, 0, 0, tensorboard=True) as metrics:
        metrics.write(1, {"train_loss": 3.5, "learning_rate": 0.125})
        metrics.write(2, {"val_loss": 3.25}, sample="two\nlines")
        first, second = (tmp_path / "metrics.jsonl").read_text().splitlines()
        assert events_of(tmp_path, "learning_rate") == [(1, 0.125)], "seen at once"
        assert not synced
        metrics.flush()
        assert synced == metrics.files and len(synced) == 2, "and on the disk after a flush"
    assert json.loads(first) == {"step": 1, "train_loss": 3.5, "learning_rate": 0.125}
    assert json.loads(second) == {"step": 2, "val_loss": 3.25}
    assert events_of(tmp_path, "train_loss") == [(1, 3.5)]
    assert events_of(tmp_path, "val_loss") == [(2, 3.25)]
    (text,) = EventAccumulator(str(tmp_path)).Reload().Tensors("sample/text_summary")
    assert text.step == 2 and text.tensor_proto.string_val[0] == b"    two\n    lines\n"


CUT = ["", '{"step": 3, "train', '{"step": 2, "train_loss": 9.0}', '[1]\n{"a": 1}\n\udcff\n']


@pytest.mark.parametrize("cut", CUT)
@pytest.mark.parametrize("last_eval_step", [1, 2])
def test_a_resumed_run_has_no_gap_and_no_step_twice(
    tmp_path: Path, cut: str, last_eval_step: int
) -> None:
    """Stopped at step 2, before or after its evaluation; the file went on, and ends with `cut`."""
    with Metrics(tmp_path, 0, 0, tensorboard=True) as metrics:
        for step in (1, 2, 3, 4):
            metrics.write(step, {"train_loss": float(step)})
            metrics.write(step, {"val_loss": float(-step)})
    with open(tmp_path / "metrics.jsonl", "a", errors="surrogateescape") as file:
        file.write(cut)
    with Metrics(tmp_path, 2, last_eval_step, tensorboard=True) as metrics:
        for step in (2, 3, 4):
            if step > 2:
                metrics.write(step, {"train_loss": 10.0 * step})
            if step > last_eval_step:
                metrics.write(step, {"val_loss": -10.0 * step})
    losses = [(1, 1.0), (2, 2.0), (3, 30.0), (4, 40.0)]
    validation = [(1, -1.0), (2, -2.0 if last_eval_step == 2 else -20.0), (3, -30.0), (4, -40.0)]
    for key, expected in (("train_loss", losses), ("val_loss", validation)):
        assert lines_of(tmp_path, key) == events_of(tmp_path, key) == expected


FOREIGN = ["[1]", "null", '{"step": "x"}', '{"step": -1}', '{"step": true}', "[" * 100_000]
FOREIGN += ['{"step": 2, "val_loss": []}', '{"step": 3, "val_loss"', '{"val_loss": 1.0}', ""]
FOREIGN += ['{"step": 2, "val_loss": NaN}', '{"step": 2, "val_loss": 1e400}', '{"step": 1.0}']
FOREIGN += ['{"step": 2, "\\u001b[31m": 1}', '{"step": 2, "é": 1}', '{"step": 9223372036854775808}']
FOREIGN += ['{"step": 2, "a": ' + "9" * 5000 + "}"]


def test_a_line_that_is_not_ours_says_nothing(tmp_path: Path) -> None:
    assert [line for line in FOREIGN if parse(line) is not None] == []
    ours = '{"step": 1, "val_loss": 2.5}'
    (tmp_path / "metrics.jsonl").write_text("\n".join([ours, *FOREIGN, ours]))
    assert read_metrics(tmp_path) == 2 * [{"step": 1, "val_loss": 2.5}]
    assert read_metrics(tmp_path / "absent") == []


@contextmanager
def full_disk(size: int) -> Iterator[None]:
    """No file may grow beyond this size, as where a quota is used up."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def measure(run: Path, tensorboard: bool, step: int = 0) -> None:
    """What a resumed run does: what is kept is written to TensorBoard again."""
    with Metrics(run, step, 0, tensorboard) as metrics:
        for number in range(step + 1, step + 6):
            metrics.write(number, {"train_loss": 1.0, "grad_norm": 2.0}, sample="a sample")
            if number % 2:
                metrics.flush()


@pytest.mark.parametrize("tensorboard", [False, True])
def test_a_full_disk_is_one_line_wherever_it_is_met(tmp_path: Path, tensorboard: bool) -> None:
    """At the start, in a line, an event or the last flush: the error is raised, in this thread."""
    for size in range(0, 10_000, 45):
        run = tmp_path / str(size)
        run.mkdir()
        try:
            with full_disk(size):
                measure(run, tensorboard)
            break
        except UserError as error:
            assert str(error) == f"could not write to {run}: File too large"
        measure(run, tensorboard)  # and when there is room it works
        assert lines_of(run, "train_loss") == [(step, 1.0) for step in range(1, 6)]
        assert tensorboard or len(list(run.iterdir())) == 1, "no events"
    largest = max(path.stat().st_size for path in run.iterdir())
    assert 200 < largest <= size < largest + 45, "what had no room was not missed"


def test_the_disk_may_be_full_when_events_are_written_again(tmp_path: Path) -> None:
    many = "".join(f'{{"step": 9, "a{i}": 1.0}}\n' for i in range(400))
    (tmp_path / "metrics.jsonl").write_text(many)
    with full_disk(15_000), pytest.raises(UserError, match=r"could not write to .*: File"):
        measure(tmp_path, True, step=9)


def test_what_is_refused_at_closing_is_one_line_unless_another_error_is_under_way(
    tmp_path: Path,
) -> None:
    with pytest.raises(KeyboardInterrupt), full_disk(0), Metrics(tmp_path, 0, 0, True):
        raise KeyboardInterrupt
    metrics = Metrics(tmp_path, 0, 0, tensorboard=True)
    message = re.escape(f"could not write to {tmp_path}: File too large")
    with full_disk(0), pytest.raises(UserError, match=message):
        metrics.__exit__(None, None, None)  # the head of the events, not flushed until here
    everything: list[Any] = metrics.files
    assert all(file.closed for file in everything)
