"""Writing with a run: what is asked for, again the same with the same seed."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import sample
import train
from run.checkpoint import load_checkpoint, save_checkpoint
from run.folder import open_run

ROOT = Path(__file__).parent.parent
DEBUG = str(ROOT / "configs" / "debug.yaml")


@pytest.fixture
def runs(workplace: Path, debug_run: Path) -> Path:
    """A folder with a copy of the debug run in it."""
    shutil.copytree(debug_run, workplace / "runs" / "debug")
    return workplace / "runs"


def write(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    capsys.readouterr()
    assert sample.main(list(argv)) == 0
    return capsys.readouterr().out


def test_the_newest_run_writes_from_a_newline(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(runs / "debug", runs / "older")
    os.utime(runs / "older" / "last.safetensors", ns=(0, 0))
    assert sample.main([]) == 0
    out, err = capsys.readouterr()
    assert len(out) == 500 + 1
    assert re.match(r"runs/debug/best.safetensors, step 60, validation loss \d\.\d+, on \w+\n", err)
    newline = open_run(runs / "debug").start_token
    assert open_run(runs / "debug").tokenizer.decode([newline]) == "\n"


def test_prompt_length_and_seed(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["runs/debug", "--prompt", "The ", "--max_new_tokens", "40"]
    text = write(capsys, *argv)
    assert text.startswith("The ") and len(text) == 4 + 40 + 1
    assert write(capsys, *argv) == text
    assert write(capsys, *argv, "--seed", "2") != text
    assert write(capsys, *argv, "--temperature=0") == write(capsys, *argv, "--top_k=1", "--seed=5")
    assert write(capsys, *argv, "--top_k=100000") == text
    assert write(capsys, "debug", *argv[1:]) == text, "a name in runs/ is a run too"


def test_several_samples_stand_apart(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = write(capsys, "--num_samples=3", "--max_new_tokens=20", "--prompt=ab")
    samples = text.split("\n" + "-" * 80 + "\n")
    assert len(samples) == 3 and len(set(samples)) == 3
    assert all(sample.startswith("ab") and len(sample.rstrip("\n")) <= 22 for sample in samples)


def test_last_and_best(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert sample.main(["--checkpoint=last"]) == 0
    assert "runs/debug/last.safetensors" in capsys.readouterr().err
    (runs / "debug" / "best.safetensors").unlink()
    assert sample.main([]) == 0, "a run that was stopped before it was evaluated has only a last"
    assert "runs/debug/last.safetensors" in capsys.readouterr().err


def test_a_run_needs_nothing_but_its_checkpoint(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = write(capsys, "debug")
    for path in (runs / "debug").rglob("*.*"):
        if path.name != "last.safetensors":
            path.unlink()
    assert write(capsys, "debug", "--checkpoint=last") == text, "best and last are the same here"


def test_bytes_write_any_prompt(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train.main([DEBUG, "--run=bytes", "--data.tokenizer=byte", "--train.max_steps=2"]) == 0
    assert write(capsys, "--prompt=日本 é", "--max_new_tokens=9").startswith("日本 é")


def test_one_that_cannot_say_where_to_start_asks_for_a_prompt(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = runs / "debug" / "best.safetensors"
    header, tensors = load_checkpoint(path)
    header.corpus["start_token"] = 10**9
    save_checkpoint(path, tensors, header)
    assert sample.main([]) == 2
    assert "does not say where to start; give a --prompt" in capsys.readouterr().err
    assert write(capsys, "--prompt=a", "--max_new_tokens=3").startswith("a")


def test_a_closed_pipe_ends_quietly(runs: Path) -> None:
    command = f"{sys.executable} {ROOT / 'sample.py'} --max_new_tokens=3000 | head -c 5"
    result = subprocess.run(command, shell=True, cwd=runs.parent, capture_output=True, text=True)
    assert len(result.stdout) == 5
    assert "Traceback" not in result.stderr and "Exception" not in result.stderr


BAD = [
    (["--prompt="], "--prompt is empty; leave it out to start from a newline"),
    (["--prompt", "é日"], "the model has never seen 'é' '日'; it knows"),
    (["--top_k=0"], "--top_k must be a number of at least 1, got 0"),
    (["--top_p=0"], "--top_p must be in (0, 1], got 0.0"),
    (["--top_p=1.5"], "--top_p must be in (0, 1], got 1.5"),
    (["--min_p=1"], "--min_p must be in [0, 1), got 1.0"),
    (["--temperature=-1"], "--temperature must be a number of at least 0, got -1.0"),
    (["--temperature=nan"], "--temperature must be a number, got 'nan'"),
    (["--temperature", "hot"], "--temperature must be a number, got 'hot'"),
    (["--num_samples=0"], "--num_samples must be a number of at least 1, got 0"),
    (["--max_new_tokens=0"], "--max_new_tokens must be a number of at least 1, got 0"),
    (["--max_new_tokens=-3"], "--max_new_tokens must be a number of at least 1, got -3"),
    (["--seed=-1"], "--seed must be a number of at least 0, got -1"),
    (["--seed=18446744073709551616"], "--seed must be below 2**63"),
    (["--checkpoint=worst"], "--checkpoint must be one of best, last, got 'worst'"),
    (["--top-k=3"], "unknown flag --top-k; did you mean --top_k?"),
    (["--num_samples"], "--num_samples needs a value"),
    (["runs/debug/best.safetensors"], "is a file; name the run's folder, runs/debug"),
    (["absent"], "there is no run absent; runs/ has 1, among them debug"),
    (["."], ". is not a run: it has no last.safetensors"),
    (["debug", "other"], "one word without a flag at most"),
]


@pytest.mark.parametrize(("argv", "message"), BAD, ids=lambda value: str(value)[:30])
def test_a_mistake_is_one_line(
    runs: Path, capsys: pytest.CaptureFixture[str], argv: list[str], message: str
) -> None:
    assert sample.main(argv) == 2
    out, err = capsys.readouterr()
    assert message in err
    assert out == ""
    assert err.splitlines()[-1].startswith("error: ")


def test_without_any_run(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert sample.main([]) == 2
    assert "there is no run in runs/ yet; make one with: python train.py" in capsys.readouterr().err
    assert sample.main(["absent"]) == 2
    assert "there is no run absent; runs/ is empty" in capsys.readouterr().err
