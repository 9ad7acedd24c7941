"""The benchmarks: each runs at a small size, and ratios and losses are recomputed."""

import json
import time
from contextlib import nullcontext
from dataclasses import asdict
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import (
    common,
    page,
    recipe,
    sampling,
    throughput,
    time_to_loss,
    zoo,
)
from configs.config import Config, ModelConfig, TrainConfig
from configs.load import SECTIONS, read_command_line, read_config
from model.gpt import GPT, next_token_loss
from page.html import make_html
from tests.conftest import DEBUG, ROOT

TINY = ModelConfig(block_size=8, n_layer=1, n_head=1, n_embd=8)


@pytest.fixture
def results(in_process: None, capsys: pytest.CaptureFixture[str]) -> Any:
    """Return a function that runs a benchmark and returns its rows."""

    def run(main: Any, *argv: str) -> Any:
        capsys.readouterr()
        assert main(list(argv)) == 0
        return json.loads(capsys.readouterr().out.splitlines()[-1])["rows"]

    return run


@pytest.fixture
def text(workplace: Path) -> str:
    (workplace / "t.txt").write_text("to be or not to be " * 300 + "not " * 75)
    return "--data.source=t.txt"


def test_alternate_compares_interleaved_measurements() -> None:
    clock = count(1.0)
    _, row = common.alternate(dict.fromkeys("ab", lambda: {"seconds": next(clock)}), 3, "seconds")
    assert row["times_as_fast"] == [2 / 1, 4 / 3, 6 / 5]
    assert common.median_and_range(row["seconds"]) == "4.000 (2.000 to 6.000)"


def test_speeds_are_those_of_a_clock_that_advances_two_seconds(
    results: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "perf_counter", partial(next, count(10.0, 2.0)))
    settings = TrainConfig(batch_size=6, device="cpu", threads=1)
    monkeypatch.setattr(throughput, "rows_known", lambda contexts: {"a row": (TINY, settings)})
    monkeypatch.setattr(sampling, "WIDER", TINY)
    (row,) = results(throughput.main, "--repetitions=1")
    assert [row["batch"], row["tokens_per_second"], row["ms_per_step"]] == ["6 x 8", [24], [2000]]
    peak = 24 * throughput.flops_per_token(GPT(TINY, throughput.VOCAB)) / 0.5e9
    assert row["percent_of_peak"] == [pytest.approx(100 * peak)]
    rows = results(sampling.main, "--tokens=20", "--repetitions=2")
    speeds = {row["batch"]: row["tokens_per_second"] for row in rows}
    assert speeds == {"1": [9.5, 9.5], "16": [152, 152]}  # without the first of 20 tokens


SHAPES = [
    {"n_layer": 2, "n_embd": 64, "n_head": 2, "block_size": 256},
    {"activation": "gelu", "bias": True, "positions": "learned"},
    {"dropout": 0.1, "ngrams": 3},
]


@pytest.mark.parametrize("choices", SHAPES, ids=str)
def test_flops_match_a_real_step(choices: dict[str, Any]) -> None:
    """PyTorch counts them, with explicit attention because it sees only plain matmuls."""
    config = ModelConfig(**choices | {"attention": "explicit"})
    model, tokens = GPT(config, 65), torch.randint(65, (4, config.block_size + 1))
    with FlopCounterMode(display=False) as counter:
        next_token_loss(model(tokens[:, :-1]), tokens[:, 1:]).backward()
    assert throughput.flops_per_token(model) * 4 * config.block_size == counter.get_total_flops()


def test_seconds_of_excludes_the_first_call(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, calls = [0.0], iter([50.0, 0.5, 0.25])

    def work() -> None:
        clock[0] += next(calls)

    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])
    assert common.seconds_of(work, "cpu", 2) == [0.5, 0.25]


@pytest.mark.slow
def test_time_to_loss_fails_if_a_run_ends_above_the_loss(text: str, results: Any) -> None:
    """Of the fixed number of steps, which is the config's."""
    flags = [DEBUG, text, "--train.max_steps=3", "--train.sample_tokens=1", "--repetitions=2"]
    (row,) = results(time_to_loss.main, "--loss=9", *flags)
    assert row["steps"] == [3, 3]
    least, most = sorted(row["validation_loss"])  # of two seeds
    assert time_to_loss.main([*flags, f"--loss={(least + most) / 2}"]) == 2
    assert time_to_loss.main([*flags, f"--loss={most}"]) == 0


@pytest.mark.slow
def test_recipe_reports_losses_of_each_seed(text: str, results: Any) -> None:
    """The losses of the two halves average to the loss of the whole."""
    (row,) = results(recipe.main, DEBUG, text, "--train.max_steps=2", "--seeds=2")
    halves = np.mean([row["first_half"], row["second_half"]], axis=0)
    assert halves == pytest.approx(row["whole"], rel=1e-2)
    assert len({*row["first_half"], *row["second_half"], *row["whole"]}) == 6


def test_each_task_of_the_zoo_has_a_config() -> None:
    assert {*zoo.RESULTS} <= {path.stem for path in (ROOT / "configs/tasks").iterdir()}


def test_each_recipe_change_sets_exactly_its_fields() -> None:
    base = Config(train=TrainConfig(max_steps=600, batch_size=16))  # as in docs/recipe.md
    for name, change in recipe.CHANGES.items():
        _, _, values = read_command_line(SECTIONS, change.split(), "", "")
        before, after = map(asdict, (base, read_config(values, None, base)))
        differing = [x for part in before for x in before[part].items() - after[part].items()]
        assert len(differing) == change.count("--"), name


@pytest.fixture
def same_browser(browser: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the benchmark of the page use the tests' browser."""
    monkeypatch.setattr(page, "start_browser", partial(nullcontext, browser))


@pytest.mark.usefixtures("same_browser")
def test_page_times_each_action_in_a_report(results: Any, report: Any, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text(make_html(report.data, report.weights), encoding="utf-8")
    rows = results(page.main, str(path), "--repetitions=1")
    assert len(rows) == 16 and "patching grid, filled" in {row["what"] for row in rows}
    assert all(len(row["milliseconds"]) == 1 for row in rows)
    assert page.main([str(tmp_path / "absent.html")]) == 2


@pytest.mark.usefixtures("same_browser")
def test_page_trains_until_the_task_is_learned(
    monkeypatch: pytest.MonkeyPatch, results: Any
) -> None:
    """Or until MOST steps."""
    monkeypatch.setattr(page, "pytorch_step", lambda threads: 40.0)
    monkeypatch.setattr(page, "TIMED", 2)
    monkeypatch.setitem(page.LEVELS, "flipflop", 0.01)
    monkeypatch.setattr(page, "MOST", 9)
    *_, learned = results(page.main, "fl", "--repetitions=1")
    *_, other = results(page.main, "recall", "--repetitions=1")
    assert learned["steps"][0] < other["steps"][0] == 9
