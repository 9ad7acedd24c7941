"""The benchmarks measure what they say. No number is asserted that depends on the machine."""

import dataclasses
import json
import math
import multiprocessing
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import (
    common,
    compare,
    endurance,
    recipe,
    reliability,
    sampling,
    scaling,
    throughput,
    time_to_loss,
)
from common.errors import UserError
from common.tables import print_table
from configs.load import SECTIONS, make_parser, read_config, to_plain
from model.config import ModelConfig
from model.gpt import GPT
from run.checkpoint import load_checkpoint, save_checkpoint
from run.folder import open_run
from tests.jobs import CONTEXT
from training.config import TrainConfig
from training.size import flops_per_token

DEBUG = str(Path(__file__).parent.parent.parent / "configs" / "debug.yaml")
TINY = ModelConfig(block_size=8, n_layer=1, n_head=1, n_embd=8)
FACTS = {"processor": "p", "device": "cpu", "threads": 1, "torch": "t"}
FACTS |= {"float32_gflops": 1, "bfloat16_gflops": 1, "memory_gb_per_s": 1}


def last_json(text: str) -> Any:
    """The benchmark's JSON line, which is its last."""
    return json.loads(text.strip().splitlines()[-1])


def test_a_table_is_aligned(capsys: pytest.CaptureFixture[str]) -> None:
    print_table([["name", "x"], ["a", "1"], ["longer", "22"]])
    assert capsys.readouterr().out.splitlines() == [
        "name     x",
        "------  --",
        "a        1",
        "longer  22",
    ]


def test_median_and_spread() -> None:
    assert common.median_and_spread([3000.0, 1000.0, 1500.4]) == "1,500 (1,000 to 3,000)"


def test_nanogpts_shape_has_nanogpts_size() -> None:
    """10.65M, as nanoGPT prints (Karpathy 2022), with the positions that it leaves out."""
    model = GPT(throughput.WIDER, throughput.VOCAB)
    assert model.position_embedding is not None
    counted = model.num_parameters() - model.position_embedding.weight.numel()
    assert round(counted / 1e6, 2) == 10.65


def test_throughput_is_measured() -> None:
    settings = TrainConfig(batch_size=2, device="cpu", threads=1)
    measured = throughput.measure(TINY, settings, 0.01, "")
    per_token = flops_per_token(TINY, throughput.VOCAB)
    assert measured.gflops == pytest.approx(measured.tokens_per_second * per_token / 1e9)
    assert measured.ceiling > measured.gflops > 0 and measured.megabytes > 10


@pytest.mark.parametrize("size", [1, 2])
def test_growth_is_measured(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(multiprocessing, "get_context", lambda _: CONTEXT)
    settings = TrainConfig(batch_size=2, device="cpu", threads=1)
    measured = scaling.measure((TINY, settings), 0.01, size)
    assert measured.seconds > 0 and 0 < measured.megabytes < 500


def test_growth_is_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measure(shape: scaling.Shape, at_least: float, size: int = 1) -> scaling.Measured:
        return scaling.Measured(1.0 if size == 1 else 0.625, 100.0)

    monkeypatch.setattr(scaling, "in_fresh_process", lambda *_: FACTS)
    monkeypatch.setattr(scaling, "measure", measure)
    assert scaling.main(["--repetitions=1"]) == 0
    printed = capsys.readouterr().out
    assert ["2", "8", "x", "128", "625.0", "(625.0", "to", "625.0)", "3,277", "80%", "100"] in [
        line.split() for line in printed.splitlines()
    ]
    tables = last_json(printed)["tables"]
    assert list(tables) == ["processes", "context", "width", "batch"]
    assert [row["efficiency"] for row in tables["processes"]] == [1, 0.8]
    assert {row["attention"] for row in tables["context"]} == {"fused", "explicit"}
    assert {row["tokens_per_second"] for row in tables["context"]} == {2048.0}, "equal steps"


@pytest.mark.parametrize("way", ["exact", "int8"])
def test_sampling_is_measured(monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    monkeypatch.setattr(sampling, "WIDER", TINY)
    speed, megabytes = sampling.measure(way, 2, 5, "")
    assert speed > 0 and megabytes > 10


def test_the_first_character(debug_run: Path) -> None:
    assert 0 < sampling.seconds_to_first_character(debug_run.parent.parent) < math.inf


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

    flags += ["--loss=0.001", "--train.max_steps=5"]
    assert time_to_loss.main([DEBUG, "--repetitions=1", *flags]) == 2
    printed = capfd.readouterr()
    assert not last_json(printed.out)["reached"]
    assert "not every run reached 0.001" in printed.err


def test_halves_make_the_whole(debug_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(debug_run.parent.parent)
    first, second, whole = recipe.halves(debug_run)
    assert whole == pytest.approx((first + second) / 2, abs=1e-3)
    assert first != second
    header = open_run(debug_run, "last").header
    assert header.val_loss == pytest.approx(whole, rel=0.01)  # which was measured in bfloat16


def test_each_change_of_the_recipe_is_understood_and_is_one() -> None:
    parser = make_parser(SECTIONS)
    base = to_plain(read_config(parser, [], None))
    for name, change in recipe.CHANGES.items():
        assert to_plain(read_config(parser, change.split(), None)) != base, name


def write_run(folder: Path, debug_run: Path, curve: list[tuple[int, float, float]]) -> Path:
    """A run with these evaluations."""
    folder.mkdir(parents=True)
    (folder / "last.safetensors").write_bytes((debug_run / "last.safetensors").read_bytes())
    lines = [{"step": s, "seconds": t, "val_loss": loss} for s, t, loss in curve]
    other = [{"step": 1, "seconds": 0.1, "train_loss": 9.0}]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(x) + "\n" for x in other + lines))
    return folder


def test_compare(workplace: Path, debug_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(workplace / "runs/a", debug_run, [(10, 1.0, 3.0), (20, 2.0, 2.0), (30, 3.0, 1.5)])
    write_run(workplace / "runs/b", debug_run, [(10, 2.0, 2.5), (30, 6.0, 1.0)])
    assert compare.main(["runs/a", "runs/b"]) == 0
    result = last_json(capsys.readouterr().out)
    assert result["config"] == {}
    assert result["at_steps"] == [[10, [3.0, 2.5]], [30, [1.5, 1.0]]]
    assert result["at_seconds"][0] == [2.0, [2.0, 2.5]]
    assert result["at_seconds"][-1] == [3.0, [1.5, 2.5]]
    assert result["best"] == [1.5, 1.0]


def test_compare_says_what_differs() -> None:
    configs = [
        read_config(make_parser(SECTIONS), flags, None)
        for flags in ([], ["--model.n_layer=2"], ["--model.n_layer=2", "--train.seed=5"])
    ]
    assert compare.differences(configs) == {
        "model.n_layer": [4, 2, 2],
        "train.seed": [1337, 1337, 5],
    }


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["debug"], "nothing to compare"),
        (["debug", "nowhere"], "there is no run nowhere"),
        (["debug", "debug", "--x", "1"], "unknown flag --x"),
    ],
)
def test_compare_refuses(
    workplace: Path,
    debug_run: Path,
    capsys: pytest.CaptureFixture[str],
    argv: list[str],
    said: str,
) -> None:
    (workplace / "runs").mkdir()
    (workplace / "runs" / "debug").symlink_to(debug_run)
    assert compare.main(argv) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("module", [throughput, sampling, time_to_loss])
def test_a_checkout_that_is_none(
    module: Any, workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert module.main(["--nanogpt=nowhere"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: --nanogpt nowhere is no checkout of nanoGPT")
    assert error.count("\n") == 1


def test_memory_of_a_fresh_process_is_its_own() -> None:
    assert common.in_fresh_process(common.peak_memory, torch.device("cpu")) > 10


def test_killed_runs_lose_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    """A short form, without the small disks, which not every system lets one mount;
    docs/reliability.md has the long form's figures."""
    assert reliability.main(["--kills=8", "--full_disks=0"]) == 0
    killed = last_json(capfd.readouterr().out)["killed"]
    assert killed["tried"] == 8 and killed["while_writing"] > 0 and killed["finished"] > 0
    assert not killed["broken"]


def test_what_differs_from_a_whole_run_is_named(debug_run: Path, workplace: Path) -> None:
    """So that the harness above can fail."""
    copy = workplace / "copy"
    shutil.copytree(debug_run, copy)
    assert reliability.differences(copy, debug_run) == []
    header, tensors = load_checkpoint(copy / "last.safetensors")
    tensors["model.head.weight"][0, 0] += 1e-6
    save_checkpoint(copy / "last.safetensors", tensors, dataclasses.replace(header, threads=3))
    lines = (copy / "metrics.jsonl").read_text().splitlines(keepends=True)
    (copy / "metrics.jsonl").write_text("".join(lines[1:]))
    next(copy.glob("events.*")).unlink()
    (copy / "snapshots" / "00000000.safetensors").unlink()
    (copy / ".writing-1-x").touch()
    found = " ".join(reliability.differences(copy, debug_run))
    for part in ("last: model.head.weight", "the header of last", "metrics.jsonl", "TensorBoard's"):
        assert part in found
    assert "snapshot 0" in found and "half-written" in found and "best" not in found


def test_memory_is_watched(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hold = "import time; held = b'x' * 50_000_000; time.sleep(1.2); held = b''; time.sleep(1.2)"
    seen = endurance.watch(["-c", hold], workplace, "held and let go")
    assert 50 < seen["after_a_tenth"] < 100 and seen["after_a_tenth"] <= seen["at_most"]
    assert seen["at_the_end"] < seen["at_most"] - 40
    forever = endurance.watch(["-c", "import time; time.sleep(9999)"], workplace, "slept", 1.0)
    assert forever["seconds"] >= 1  # and not 9,999
    with pytest.raises(UserError, match=r"x: exit code 1: .*no-such-module"):
        endurance.watch(["-m", "no-such-module"], workplace, "x")
    assert endurance.main(["--minutes=0", "--characters=0", "--megabytes=2"]) == 0
    (part,) = last_json(capsys.readouterr().out)["parts"]
    assert part["what"] == "read 2 MB of text" and 5 < part["at_most"] < 1000
