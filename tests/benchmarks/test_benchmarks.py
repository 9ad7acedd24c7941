"""The benchmarks: throughputs, ratios and losses, recomputed with a fake clock."""

import json
import sys
import time
from contextlib import chdir, nullcontext
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import study
import train
from benchmarks import common, compare, llama2c, page, recipe, sampling, throughput, time_to_loss
from configs.load import SECTIONS, Config, read_command_line, read_config
from model.config import ModelConfig
from model.gpt import GPT
from tests.conftest import DEBUG, ROOT, make_run
from training.config import TrainConfig
from training.size import flops_per_token

TINY = ModelConfig(block_size=8, n_layer=1, n_head=1, n_embd=8)


@pytest.fixture
def results(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Return a function that runs a benchmark in this process and returns its JSON results.

    Its train.py also runs in this process, and the machine is not measured.
    """
    run_command = common.run_command

    def run_here(arguments: list[str], folder: Path) -> tuple[float, str]:
        if arguments[0] != str(ROOT / "train.py"):
            return run_command(arguments, folder)
        with chdir(folder):
            assert train.main(arguments[1:]) == 0
        return 1.5, ""

    monkeypatch.setattr(common, "run_command", run_here)
    monkeypatch.setattr(common, "in_fresh_process", lambda function, *args: function(*args))
    monkeypatch.setattr(common, "describe_machine", lambda: {"processor": "p"})

    def run(main: Any, *argv: str) -> Any:
        capsys.readouterr()
        assert main(list(argv)) == 0
        return json.loads(capsys.readouterr().out.splitlines()[-1])

    return run


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the clock with one that advances by 2 seconds at each call."""
    monkeypatch.setattr(time, "perf_counter", partial(next, count(10.0, 2.0)))


@pytest.fixture
def nanogpt(tmp_path: Path) -> str:
    """Return the folder of a fake nanoGPT, whose losses are the lengths of its splits."""
    folder = tmp_path / "nanoGPT"
    (folder / "data/shakespeare_char").mkdir(parents=True)
    (folder / "model.py").write_text("""
import torch
GPTConfig = dict
class GPT(torch.nn.Linear):
    def __init__(self, config):
        super().__init__(config["n_embd"], config["vocab_size"])
    def configure_optimizers(self, *settings):
        return torch.optim.AdamW(self.parameters())
    def forward(self, tokens, targets):
        return None, self.weight.mean()
    def generate(self, tokens, count, temperature):
        assert count == 20
""")
    (folder / "train.py").write_text("""
from os.path import getsize
train, val = (getsize(f"data/shakespeare_char/{name}.bin") // 2 for name in ("train", "val"))
print("step 20: train loss 1.0, val loss 5.0")
print(f"step 40: train loss 1.0, val loss {train}.{val}")
""")
    return str(folder)


def test_seconds_of_excludes_the_first_call(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, calls = [0.0], iter([50.0, 0.5, 0.25])

    def work() -> None:
        clock[0] += next(calls)

    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])
    assert common.seconds_of(work, "cpu", 2) == [0.5, 0.25]


def test_command_is_timed_from_start_to_exit(clock: None, tmp_path: Path) -> None:
    assert common.run_command(["-c", "print(1)"], tmp_path) == (2.0, "1\n")


def test_alternate_compares_interleaved_measurements(capsys: pytest.CaptureFixture[str]) -> None:
    clock = count(1.0)
    rivals = dict.fromkeys("ab", lambda: {"seconds": next(clock)})
    rows = common.alternate(rivals, 3, "seconds", name="a_row")
    assert rows[0]["seconds"] == [1, 3, 5] and rows[1]["seconds"] == [2, 4, 6]
    assert rows[1]["times_as_fast"] == [2 / 1, 4 / 3, 6 / 5]
    assert [common.show(x) for x in (0.0, 1234.6, "x")] == ["0", "1,235", "x"]
    common.report("some", rows, machine={"threads": 2})
    *_, line, results = capsys.readouterr().out.splitlines()
    assert line.endswith("4.000 (2.000 to 6.000)  1.333 (1.200 to 2.000)")
    assert json.loads(results)["rows"] == rows


def test_throughput_uses_the_median_step_time(
    monkeypatch: pytest.MonkeyPatch, nanogpt: str
) -> None:
    def seconds_of(step: Any, device: torch.device, repetitions: int) -> list[float]:
        step()
        return {1: [0.01], 5: [2.0, 0.5, 1.0]}[repetitions]

    monkeypatch.setattr(common, "seconds_of", seconds_of)
    monkeypatch.setattr(common, "matmul_gflops", lambda device, dtype: 0.5)
    settings = TrainConfig(batch_size=6, device="cpu", threads=1)
    gflops = 48 * flops_per_token(GPT(TINY, throughput.VOCAB)) / 1e9
    expected = {"tokens_per_second": 48, "ms_per_step": 1000, "percent_of_peak": 200 * gflops}
    for checkout in ("", nanogpt):
        measured = throughput.measure(TINY, settings, 0.05, checkout)
        assert measured.pop("megabytes") >= 0
        assert measured == pytest.approx(expected)


def test_throughput_compares_equal_models(monkeypatch: pytest.MonkeyPatch, results: Any) -> None:
    """The model has nanoGPT's number of parameters, none of them zero. Sweeps keep the number of
    tokens per step."""

    def measure(model: Any, train: Any, *rest: Any) -> common.Row:
        return {"tokens_per_second": model.block_size * train.batch_size}

    monkeypatch.setattr(throughput, "measure", measure)
    rows = results(throughput.main, "--repetitions=1", "--nanogpt=a")["rows"]
    assert [row["by"] for row in rows] == ["ours", "nanoGPT"] * 3 + ["ours"] * 2
    for row in results(throughput.main, "--only=context")["rows"]:
        assert set(row["tokens_per_second"]) == {2048}
    config, V = throughput.CLASSICAL, throughput.VOCAB
    C, T, L = config.n_embd, config.block_size, config.n_layer
    model = GPT(config, V)
    assert model.num_parameters() == (V + T) * C + L * (12 * C * C + 2 * C) + C
    assert all(weight.any() for weight in model.parameters())


# A fake run.c of llama2.c, which reads the sizes of the model in the same way.
RUN = f"""#!{sys.executable}
import struct, sys
content = open("model.bin", "rb").read()
dim, hidden, layers, heads, _, vocab, context = struct.unpack("7i", content[:28])
size = vocab * dim + layers * (2 * dim + 4 * dim * dim + 3 * dim * hidden) + dim
assert len(content) == 28 + 4 * (size + context * (dim // heads))
print(f"achieved tok/s: {{sys.argv[-1]}}.5", file=sys.stderr)
"""


def test_sampling_reports_tokens_per_second(
    clock: None, monkeypatch: pytest.MonkeyPatch, results: Any, nanogpt: str, tmp_path: Path
) -> None:
    (tmp_path / "run.c").write_text(RUN)
    monkeypatch.setattr(llama2c, "COMPILER", ("sh", "-c", 'cp "$0" "$3"; chmod +x "$3"'))
    for module in (sampling, llama2c):
        monkeypatch.setattr(module, "WIDER", TINY)
    flags = [f"--nanogpt={nanogpt}", f"--llama2c={tmp_path}", "--repetitions=2", "--tokens=20"]
    rows = results(sampling.main, *flags)["rows"]
    speeds = {(row["by"], row["batch"]): row["tokens_per_second"][1] for row in rows}
    both = {(by, n): 10 * int(n) for by in ("ours", "nanoGPT") for n in ("1", "16")}
    assert speeds == both | {("llama2.c", "1"): TINY.block_size + 0.5}  # llama2.c ignores --tokens


@pytest.fixture
def text(workplace: Path) -> str:
    (workplace / "t.txt").write_text("to be or not to be " * 300 + "not " * 75)
    return "--data.source=t.txt"


@pytest.mark.slow
def test_time_to_loss_stops_at_the_loss_and_compares(text: str, results: Any, nanogpt: str) -> None:
    """Two runs of train.py stop early, alternating with a fake nanoGPT."""
    flags = [DEBUG, text, "--train.eval_every=5", "--repetitions=2", f"--nanogpt={nanogpt}"]
    ours, theirs = results(time_to_loss.main, "--loss=2.4", *flags)["rows"]
    assert max(ours["validation_loss"]) <= 2.4 and max(ours["steps"]) < 60
    assert len(set(ours["validation_loss"])) == 2
    assert theirs["validation_loss"] == [5400.6] * 2  # tokens of the two splits
    ratios = np.array(theirs["seconds"]) / ours["seconds"]
    assert theirs["times_as_fast"] == pytest.approx(ratios)
    assert time_to_loss.main([*flags[:2], "--repetitions=1", "--train.max_steps=1"]) == 2


@pytest.mark.slow
def test_recipe_reports_losses_of_each_seed(text: str, results: Any) -> None:
    """The losses of the two halves average to the loss of the whole."""
    (row,) = results(recipe.main, DEBUG, text, "--train.max_steps=2", "--seeds=2")["rows"]
    halves = np.mean([row["first_half"], row["second_half"]], axis=0)
    assert halves == pytest.approx(row["whole"], rel=1e-2)
    assert len({*row["first_half"], *row["second_half"], *row["whole"]}) == 6


def test_each_recipe_change_sets_exactly_its_fields() -> None:
    base = Config(train=TrainConfig(minutes=0.0))
    for name, change in recipe.CHANGES.items():
        _, values = read_command_line(SECTIONS, change.split(), "", "")
        differing = compare.differing_fields([base, read_config(values, None, base)])
        assert len(differing) == change.count("--"), name


def test_losses_are_compared_at_equal_steps_and_times() -> None:
    curves = [[(10, 1.0, 3.0), (20, 2.0, 2.0), (30, 3.0, 1.5)], [(10, 2.0, 2.5), (30, 6.0, 1.0)]]
    assert compare.at_steps(curves) == {"10": [3.0, 2.5], "30": [1.5, 1.0]}
    after = compare.at_seconds(curves)
    assert (after["2.000 s"], after["3.000 s"]) == ([2.0, 2.5], [1.5, 2.5])


def test_compare_uses_bits_if_tokenizers_differ(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nats per token if the tokenizers are equal, else bits per character."""
    for name, chars, bits in (("a", "abc", 1), ("b", None, 2)):
        run = make_run(workplace / "runs" / name, chars)
        line = f'{{"step": 9, "seconds": 1, "val_loss": 8, "bits_per_char": {bits}}}'
        (run / "metrics.jsonl").write_text(line)
    assert compare.main(["a", "b"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert "in bits/char:" in " ".join(rows[0]) and ["data.tokenizer", "char", "byte"] in rows
    assert ["9", "1.0000", "2.0000"] in rows and ["loss", "1.0000", "2.0000"] in rows
    assert compare.main(["a", "a"]) == 0
    assert ["9", "8.0000", "8.0000"] in map(str.split, capsys.readouterr().out.splitlines())


@pytest.mark.slow
def test_page_times_each_action(
    text: str, results: Any, browser: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = ["--model.block_size=8", "--train.max_steps=2", "--train.snapshots=2", "--run=a"]
    assert train.main([DEBUG, text, *flags]) == 0
    assert study.main(["report", "a", "--sequences=2"]) == 0
    monkeypatch.setattr(page, "start_browser", partial(nullcontext, browser))
    rows = results(page.main, "runs/a/report.html", "--repetitions=1")["rows"]
    assert len(rows) == 16 and "patching grid, filled" in {row["what"] for row in rows}
    assert page.median_and_p95([9.0, 1.0, 3.0, 2.0]) == "2.000 (3.000)"
