"""The benchmarks measure what they say. No number is asserted that depends on the machine."""

import itertools
import json
import math
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks import (
    common,
    compare,
    llama2c,
    page,
    recipe,
    sampling,
    throughput,
    time_to_loss,
)
from common.errors import UserError
from common.tables import print_table
from configs.load import SECTIONS, Config, read_command_line, read_config
from data.corpus import Corpus
from data.tokenizer import CharTokenizer
from lens.report.page import MARK
from model.config import ModelConfig
from model.gpt import GPT
from run.checkpoint import open_run
from tests.conftest import make_run
from training.config import TrainConfig
from training.size import flops_per_token

DEBUG = str(Path(__file__).parent.parent.parent / "configs" / "debug.yaml")
CPU = torch.device("cpu")
TINY = ModelConfig(block_size=8, n_layer=1, n_head=1, n_embd=8)
FACTS = {"processor": "p", "device": "cpu", "threads": 1, "torch": "t"}
FACTS |= {"float32_gflops": 1, "bfloat16_gflops": 1, "memory_gb_per_s": 1}


def last_json(text: str) -> Any:
    """The benchmark's JSON line, which is its last."""
    return json.loads(text.strip().splitlines()[-1])


def test_a_table_is_aligned(capsys: pytest.CaptureFixture[str]) -> None:
    print_table([["name", "x"], ["a", "1"], ["longer", "22"]])
    lines = ["name     x", "------  --", "a        1", "longer  22"]
    assert capsys.readouterr().out.splitlines() == lines


def test_a_table_fits_the_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What has no room beside the rest stands below it, each row under its name again."""
    rows = [["name", "first", "second", "x"], ["a", "1", "2", "3"], ["b", "4", "5", "6"]]
    parts = {
        "23": ["name  first  second  x", "----  -----  ------  -", "a         1       2  3"],
        "19": ["name  first  second", "----  -----  ------", "a         1       2"],
        "5": ["name  first", "----  -----", "a         1"],
    }
    for columns, beginning in parts.items():
        monkeypatch.setenv("COLUMNS", columns)
        print_table(rows)
        lines = capsys.readouterr().out.splitlines()
        assert lines[:3] == beginning
        assert lines[-1].split()[0] == "b" and lines[-1].split()[-1] == "6"
        assert len(lines) == {"23": 4, "19": 9, "5": 14}[columns]


def test_nanogpts_shape_has_nanogpts_size() -> None:
    """10.65M, as nanoGPT prints (Karpathy 2022), with the positions that it leaves out."""
    model = GPT(throughput.WIDER, throughput.VOCAB)
    assert model.position_embedding is not None
    counted = model.num_parameters() - model.position_embedding.weight.numel()
    assert round(counted / 1e6, 2) == 10.65


def test_time_is_measured_on_a_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of our own: the first call takes long, and does not count."""
    clock, calls = [0.0], iter([50.0, 0.5, 0.25])

    def work() -> None:
        clock[0] += next(calls)

    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])
    assert common.seconds_of(work, CPU, 2) == [0.5, 0.25]
    monkeypatch.setattr(common, "seconds_of", lambda function, device, n: [0.5, 0.25, 1.0])
    assert common.product_rate(CPU, torch.float32) == 2 * 2048**3 / 0.25 / 1e9
    monkeypatch.setattr(torch, "ones", lambda n, device: torch.zeros(1).expand(n))
    assert common.memory_rate(CPU) == 4 * 2**27 / 0.25 / 1e9
    assert common.median_and_spread([3000.0, 1000.0, 1500.4]) == "1,500 (1,000 to 3,000)"


def test_throughput_is_tokens_by_the_median_step(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def seconds_of(step: Callable[[], Any], device: torch.device, repetitions: int) -> list[float]:
        step()
        asked.append(repetitions)
        return [0.01] if repetitions == 1 else [2.0, 0.5, 1.0]

    monkeypatch.setattr(throughput, "seconds_of", seconds_of)
    monkeypatch.setattr(throughput, "product_rate", lambda device, dtype: 7.0)
    settings = TrainConfig(batch_size=6, device="cpu", threads=1)
    measured = throughput.measure(TINY, settings, 0.05, "")
    assert asked == [1, 5] and measured.peak == 7.0 and measured.megabytes > 10
    assert measured.tokens_per_second == 6 * 8 / 1.0
    assert measured.gflops == 48 * flops_per_token(TINY, throughput.VOCAB) / 1e9


def test_what_is_compared_has_as_many_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {})
    common.take_all_cores()
    assert os.environ == {"OMP_NUM_THREADS": str(torch.get_num_threads())}


def test_sampling_is_measured(monkeypatch: pytest.MonkeyPatch, nanogpt: str) -> None:
    clock = itertools.count(10.0, 2.0)
    monkeypatch.setattr(sampling, "WIDER", TINY)
    monkeypatch.setattr(time, "perf_counter", lambda: next(clock))
    for way in ("ours", "nanogpt"):
        speed, megabytes = sampling.measure(way, 3, 5, nanogpt)
        assert speed == 3 * 5 / 2 and megabytes > 10


# In place of C; it looks at what it is given as llama2.c's run.c does.
RUN = f"""#!{sys.executable}
import os, struct, sys
model, *flags, n = sys.argv[1:]
assert flags == ["-t", "0", "-n"] and os.environ["OMP_NUM_THREADS"] == "1"
content, words = open(model, "rb").read(), open("tokenizer.bin", "rb").read()
dim, hidden, layers, heads, kv_heads, vocab, context = struct.unpack("7i", content[:28])
weights = struct.unpack(f"{{len(content) // 4 - 7}}f", content[28:])
layer = 2 * dim + 4 * dim * dim + 3 * dim * hidden
table = 2 * (context * (dim // heads) // 2)
assert len(weights) == vocab * dim + layers * layer + dim + table and kv_heads == heads
assert weights[:dim] == weights[dim : 2 * dim] != weights[2 * dim : 3 * dim]
longest, *words = struct.unpack("=i" + vocab * "fi1s", words)
assert longest == 1 and set(words[1::3]) == {{1}} and len(set(words[2::3])) == vocab
print("text")
print(f"achieved tok/s: {{n}}.5", file=sys.stderr)
"""
CC = """#!/bin/sh
if grep -q assert "$4"; then cp "$4" "$7"; chmod +x "$7"; exit 0; fi
echo "run.c: In function 'main':
run.c:1: error: expected" >&2
exit 1
"""


@pytest.fixture
def llama2c_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What looks like a checkout of llama2.c, with a compiler for it."""
    for name, content in {"llama2.c/run.c": RUN, "bin/cc": CC}.items():
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(content)
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    return tmp_path / "llama2.c"


def test_llama2c_is_measured(
    monkeypatch: pytest.MonkeyPatch, llama2c_checkout: Path, tmp_path: Path
) -> None:
    monkeypatch.setattr(llama2c, "WIDER", TINY)
    llama2c.build(str(llama2c_checkout), tmp_path)
    for tokens, generated in ((5, 5), (500, TINY.block_size)):
        speed, megabytes = sampling.measure("llama2c", 1, tokens, str(tmp_path))
        assert speed == generated + 0.5 and math.isnan(megabytes)


def test_a_llama2c_that_does_not_run_is_one_line(
    monkeypatch: pytest.MonkeyPatch, llama2c_checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def error(checkout: Path = llama2c_checkout) -> str:
        assert sampling.main([f"--llama2c={checkout}"]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        return line

    assert "is no checkout of llama2.c: there is no" in error(llama2c_checkout / "absent")
    (llama2c_checkout / "run.c").write_text("int main(")
    assert "run.c with OpenMP: run.c:1: error: expected" in error()
    monkeypatch.setenv("PATH", "")
    assert "--llama2c needs a C compiler, and there is no cc; install gcc" in error()


def test_a_llama2c_that_says_no_speed_is_refused(tmp_path: Path) -> None:
    for script, message in (
        ("echo malloc failed! >&2; exit 1", "llama2.c ended with 1 and no speed: malloc failed!"),
        ("exit 0", "llama2.c ended with 0 and no speed: it takes more --tokens"),
    ):
        (tmp_path / "run").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "run").chmod(0o755)
        with pytest.raises(UserError, match=f"^{message}$"):
            llama2c.tokens_per_second(tmp_path, 1)


def test_speeds_are_shown_beside_the_others(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], nanogpt: str
) -> None:
    speeds = {"ours": 60.0, "nanogpt": 30.0, "llama2c": 120.0}

    def in_fresh_process(function: Any, *args: Any) -> Any:
        if function is sampling.measure:
            return speeds[args[0]] * args[1], 9.0
        if function is throughput.measure:  # the last argument is the checkout, or empty
            return throughput.Measured(10.0 if args[3] else 25.0, 2.0, 4.0, 5.0)
        return FACTS

    for module in (sampling, throughput):
        monkeypatch.setattr(module, "in_fresh_process", in_fresh_process)
    monkeypatch.setattr(subprocess, "run", lambda *args, **options: None)
    monkeypatch.setattr(sampling, "seconds_to_first_character", lambda folder: 1.5)
    monkeypatch.setattr(llama2c, "build", lambda checkout, folder: None)
    flags = [f"--nanogpt={nanogpt}", "--repetitions=2"]
    assert sampling.main([*flags, "--llama2c=llama2.c"]) == 0
    found = last_json(capsys.readouterr().out)
    rows = {(row["way"], row["batch_size"]): row for row in found["rows"]}
    assert rows.keys() == {(way, size) for way in speeds for size in (1, 16)} - {("llama2c", 16)}
    assert rows["ours", 16]["tokens_per_second"] == [960.0] * 2
    assert rows["ours", 1]["times_nanogpt"] == [2.0] * 2
    assert rows["ours", 1]["times_llama2c"] == [0.5] * 2
    assert "times_llama2c" not in rows["ours", 16] and found["first_character_seconds"] == 1.5
    assert throughput.main(flags) == 0
    found = last_json(capsys.readouterr().out)
    assert [row["percent_of_peak"] for row in found["rows"]] == [[50.0] * 2] * 5
    assert [row.get("ratios") for row in found["rows"]] == [[2.5] * 2] * 3 + [None] * 2


def test_nanogpt_trains_in_turn(nanogpt: str, capfd: pytest.CaptureFixture[str]) -> None:
    settings = TrainConfig(batch_size=6, device="cpu", threads=1)
    measured = throughput.measure(TINY, settings, 0.0, nanogpt)
    assert measured.tokens_per_second > 0 and capfd.readouterr().out == ""
    tokens, tokenizer = np.arange(100) % 7, CharTokenizer("abcdefg")
    found = time_to_loss.theirs(nanogpt, Corpus(tokens, tokenizer, {}))
    assert found["own_val_loss"] == 90 + 10 / 100 and found["seconds"] > 0


@pytest.fixture
def nanogpt(tmp_path: Path) -> str:
    """What looks like a checkout of nanoGPT; its losses are the lengths of its splits."""
    (tmp_path / "nanoGPT/data/shakespeare_char").mkdir(parents=True)
    (tmp_path / "nanoGPT/model.py").write_text("""
import dataclasses, torch
@dataclasses.dataclass
class GPTConfig:
    block_size: int; n_layer: int; n_head: int; n_embd: int; vocab_size: int
    bias: bool; dropout: float = 0.0
class GPT(torch.nn.Module):
    def __init__(self, config):
        super().__init__()
        print("number of parameters")
        self.table = torch.nn.Embedding(config.vocab_size, config.vocab_size)
    def configure_optimizers(self, weight_decay, learning_rate, betas, device_type):
        return torch.optim.AdamW(self.parameters(), learning_rate, betas)
    def forward(self, tokens, targets):
        logits = self.table(tokens)
        return logits, torch.nn.functional.cross_entropy(logits.mT, targets)
    def generate(self, tokens, max_new_tokens, temperature):
        return tokens
""")
    (tmp_path / "nanoGPT/train.py").write_text("""
import numpy
sizes = [len(numpy.fromfile(f"data/shakespeare_char/{n}.bin", "uint16")) for n in ("train", "val")]
for val_loss in ("5.0", f"{sizes[0]}.{sizes[1]}"):
    print(f"step 20: train loss 1.0, val loss {val_loss}")
""")
    return str(tmp_path / "nanoGPT")


def test_runs_to_a_loss_are_summed_up(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], nanogpt: str
) -> None:
    asked = []

    def ours(config: Path, flags: list[str], loss: float, seed: int) -> dict[str, Any]:
        assert config.name == "debug.yaml" and flags == ["--train.seed=5"]
        asked.append(loss)
        found = {"seed": seed, "steps": 7, "megabytes": 1.0}
        return found | {"val_loss": 1.0, "seconds": {5: 2.0, 6: 8.0, 7: 4.0}[seed]}

    monkeypatch.setattr(time_to_loss, "ours", ours)
    monkeypatch.setattr(time_to_loss, "in_fresh_process", lambda *_: FACTS)
    nano = {"seconds": 16.0, "own_val_loss": 1.9, "megabytes": 2.0}
    monkeypatch.setattr(time_to_loss, "theirs", lambda checkout, corpus: nano)
    assert time_to_loss.main([DEBUG, "--loss=1.5", "--train.seed=5", f"--nanogpt={nanogpt}"]) == 0
    found = last_json(capsys.readouterr().out)
    assert found["seconds"] == 4.0 and found["ratios"] == [8.0, 2.0, 4.0] and found["reached"]
    assert time_to_loss.main([DEBUG, "--loss=0.9", "--train.seed=5"]) == 2
    out, err = capsys.readouterr()
    assert not last_json(out)["reached"] and "not every run reached 0.9" in err
    assert asked == [1.5] * 3 + [0.9] * 3


def test_a_recipe_is_summed_up(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = []

    def train_and_measure(config: str, flags: list[str], seed: int) -> dict[str, float]:
        asked.append((config, flags, seed))
        found = dict.fromkeys(("seconds", "megabytes", "first_half", "second_half"), 1.0)
        return found | {"whole": 2.0 + 0.1 * (seed - 1337) + 0.5 * ("--model.bias=true" in flags)}

    monkeypatch.setattr(recipe, "train_and_measure", train_and_measure)
    monkeypatch.setattr(recipe, "in_fresh_process", lambda *_: FACTS)
    assert recipe.main([DEBUG, "--changes", "--seeds=2", "--train.max_steps=7"]) == 0
    changes = ["", *recipe.CHANGES.values()]
    assert asked == [
        (DEBUG, ["--train.max_steps=7", *change.split()], seed)
        for change in changes
        for seed in (1337, 1338)
    ]
    printed = capsys.readouterr().out
    (row,) = (line.split() for line in printed.splitlines() if line.startswith("biases"))
    assert row[-4:] == ["2.5500", "±", "0.0707", "+0.5000"]
    assert [row["flags"] for row in last_json(printed)["rows"]] == changes
    asked.clear()
    assert recipe.main(["--seeds=1"]) == recipe.main(["--seeds=1", "--train.minutes=2.0"]) == 0
    # The default makes the same number of steps each time, unless a time is asked for.
    assert asked == [("", [f"--train.minutes={minutes}"], 1337) for minutes in (0.0, 2.0)]


def test_flags_mean_the_same_in_another_folder(workplace: Path) -> None:
    (workplace / "a.txt").touch()
    more = ["--model.bias", "--train.learning_rate=null", "--data.separator=[ -"]
    values = read_command_line(SECTIONS, ["--data.source=a.txt", *more], "", "")[1]
    passed = common.passed_on(values, read_config(values, None))
    assert read_flags(*passed) == read_flags(f"--data.source={workplace / 'a.txt'}", *more)
    two = ["--data.source=a.txt", "--data.source=b c"]
    values = read_command_line(SECTIONS, two, "", "")[1]
    assert common.passed_on(values, read_config(values, None)) == two


def test_time_to_loss(
    workplace: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time_to_loss, "in_fresh_process", lambda *_: FACTS)
    (workplace / "t.txt").write_text("to be or not to be " * 300)
    flags = ["--data.source=t.txt", "--train.eval_every=5", "--train.tensorboard=false"]
    argv = [DEBUG, "--repetitions=1", "--loss=2.4", *flags]
    assert time_to_loss.main(argv) == 0
    result = last_json(capfd.readouterr().out)
    (run,) = result["runs"]
    assert result["reached"] and result["seconds"] == run["seconds"] > 0
    assert run["val_loss"] <= 2.4 and run["steps"] < 60 and run["seed"] == 1337


def test_halves_make_the_whole(workplace: Path, debug_run: Path) -> None:
    shutil.copytree(debug_run, "run")
    Path("run/best.safetensors").write_text("it is the last weights that are measured")
    first, second, whole = recipe.halves(Path("run"))
    assert whole == pytest.approx((first + second) / 2, abs=1e-3)
    assert first != second
    header = open_run(debug_run, "last").header
    assert header.state.val_loss == pytest.approx(whole, rel=0.01)  # measured in bfloat16 perhaps


def test_each_change_of_the_recipe_is_understood_and_is_one() -> None:
    steps = "--train.minutes=0"  # as main adds
    for name, change in recipe.CHANGES.items():
        differing = compare.differences([read_flags(steps), read_flags(steps, *change.split())])
        assert len(differing) == change.count("--"), name


def read_flags(*flags: str) -> Config:
    return read_config(read_command_line(SECTIONS, list(flags), "", "")[1], None)


def test_compare_runs_with_different_tokens(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In bits per character, which are the same thing for both."""
    for name, chars in (("letters", "\n abc"), ("bytes", None)):
        run = make_run(workplace / "runs" / name, chars)
        line = {"step": 2, "seconds": 1.0, "val_loss": len(name), "bits_per_char": len(name) / 10}
        (run / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    assert compare.main(["letters", "bytes"]) == 0
    output = capsys.readouterr().out
    assert output.startswith("losses in bits/char: the runs have different tokens\n")
    assert last_json(output)["at_steps"] == [[2, [0.7, 0.5]]]
    assert last_json(output)["best"] == [0.7, 0.5]


def test_compare(workplace: Path, debug_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    curves = {
        "a": [(10, 1.0, 3.0), (20, 2.0, 2.0), (30, 3.0, 1.5)],
        "b": [(10, 2.0, 2.5), (30, 6.0, 1.0)],
    }
    for name, curve in curves.items():
        folder = workplace / "runs" / name
        folder.mkdir(parents=True)
        shutil.copy(debug_run / "last.safetensors", folder)
        lines: list[dict[str, float]] = [{"step": 1, "seconds": 0.1, "train_loss": 9.0}]
        lines += [{"step": n, "seconds": time, "val_loss": loss} for n, time, loss in curve]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
    assert compare.main(["runs/a", "runs/b"]) == 0
    result = last_json(capsys.readouterr().out)
    assert result["config"] == {}
    assert result["at_steps"] == [[10, [3.0, 2.5]], [30, [1.5, 1.0]]]
    assert result["at_seconds"][0] == [2.0, [2.0, 2.5]]
    assert result["at_seconds"][-1] == [3.0, [1.5, 2.5]]
    assert result["best"] == [1.5, 1.0]
    pytest.importorskip("matplotlib", reason="needs pip install matplotlib")
    assert compare.main(["runs/a", "runs/b", "--picture", "curves.svg"]) == 0
    picture = Path("curves.svg").read_text()
    assert all(f">{name}<" in picture for name in ("a", "b", "uniform", "unigram", "bigram"))
    assert compare.main(["runs/a", "runs/b", "--picture", "curves.txt"]) == 2
    two = "--model.n_layer=2"
    configs = [read_flags(), read_flags(two), read_flags(two, "--train.seed=5")]
    expected = {"model.n_layer": [4, 2, 2], "train.seed": [1337, 1337, 5]}
    assert compare.differences(configs) == expected


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "which page? Name a file that python study.py report has written"),
        (["absent.html"], "No such file or directory: absent.html"),
        (["notes.html"], "notes.html is not a report; python study.py report writes one"),
        (["report.html", "--repetitions=0"], "--repetitions must be in [1, inf), got 0"),
        (["report.html"], "this needs a browser; install one of chromium, chromium-browser, "),
    ],
)
def test_mistakes_with_the_page(
    argv: list[str],
    message: str,
    workplace: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """On a machine with a driver and no browser."""
    Path("notes.html").write_text("<!doctype html>\n<p>no report")
    Path("report.html").write_text(MARK)
    monkeypatch.setitem(sys.modules, "playwright.sync_api", ModuleType("driver"))
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert page.main(argv) == 2
    assert capsys.readouterr().err.startswith(f"error: {message}")


def test_the_page_needs_a_driver(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("report.html").write_text(MARK)
    monkeypatch.setitem(sys.modules, "playwright.sync_api", None)
    assert page.main(["report.html"]) == 2
    assert "pip install playwright" in capsys.readouterr().err


def test_times_of_the_page_are_summed_up(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first repetition does not count; a budget stands where the model has its shape."""
    Path("report.html").write_text(MARK)
    config = {"n_layer": 4, "n_embd": 128, "block_size": 128}
    tab = SimpleNamespace(context=SimpleNamespace(close=lambda: None))
    answers = {"opened": [400.0, 416.0], "[glassgpt.config, glassgpt.steps.length]": [config, 9]}
    tab.evaluate = answers.__getitem__

    def measure(tab: Any, repetition: int, found: page.Found) -> None:
        found["new text", "computed"].append([9000.0, 30.0, 10.0, 20.0][repetition])
        found["", "drawn"].append(1.0)

    monkeypatch.setattr(page, "start_browser", lambda: nullcontext(SimpleNamespace(version="1.2")))
    monkeypatch.setattr(page, "open_report", lambda browser, path: tab)
    monkeypatch.setattr(page, "measure", measure)
    assert page.main(["report.html", "--repetitions=3"]) == 0
    printed = capsys.readouterr().out
    lines = [" ".join(line.split()) for line in printed.splitlines()]
    assert "page opened drawn 400.0 400.0 500" in lines
    assert "page opened on screen 416.0 416.0" in lines
    assert "new text computed 20.0 30.0 37" in lines and len(lines) == 7
    rows = last_json(printed)["rows"]
    assert [row["budget_ms"] for row in rows] == [500, None, 37]
    assert rows[2]["ms"] == [30.0, 10.0, 20.0]
