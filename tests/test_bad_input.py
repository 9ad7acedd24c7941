"""What a person can get wrong on the way in: one clear line, exit code 2, nothing left behind.

(The config's own mistakes are in configs/test_load.py, those of sampling in test_sample.py, and
those of going on with a run in test_train.py; here are the rest, and some as real commands.)
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import errors
import sample
import train

ROOT = Path(__file__).parent.parent
DEBUG = str(ROOT / "configs" / "debug.yaml")


@pytest.fixture
def texts(workplace: Path) -> Path:
    (workplace / "empty.txt").touch()
    (workplace / "latin1.txt").write_bytes("caf\u00e9".encode("latin-1") * 200)
    (workplace / "short.txt").write_text("too short")
    (workplace / "uneven.txt").write_text("long enough for one split only " * 5)
    (workplace / "fine.txt").write_text("a text that is fine\n" * 100)
    (workplace / "folder").mkdir()
    return workplace


BAD = [
    ([DEBUG, "--data.source=absent.txt"], "no text at absent.txt"),
    ([DEBUG, "--data.source=*.md"], "no text at *.md"),
    ([DEBUG, "--data.source=folder"], "folder is a folder; name the files in it"),
    ([DEBUG, "--data.source=empty.txt"], "empty.txt is empty; name a file with text in it"),
    ([DEBUG, "--data.source=[fine.txt, empty.txt]"], "empty.txt is empty"),
    ([DEBUG, "--data.source=latin1.txt"], "latin1.txt is not UTF-8 text: byte 3 is 0xe9"),
    ([DEBUG, "--data.source=short.txt"], "the training split has 8 tokens, and a window needs"),
    ([DEBUG, "--data.source=uneven.txt"], "the validation split has 16 tokens"),
    ([DEBUG, "--data.source=repeat"], "--model.block_size 32 has no room for two copies"),
    ([DEBUG, "--data.cache_dir=fine.txt"], "error: Not a directory: "),
    ([DEBUG, "--train.device=mps"], "there is no mps device here"),
    ([DEBUG, "fine.txt"], "one word without a flag at most"),
    (["fine.txt"], "fine.txt: a config has the sections data, model, train, this has none"),
    (["folder"], "there is no config file folder"),
    (["latin1.txt"], "latin1.txt is not a YAML file"),
]


@pytest.mark.parametrize(("argv", "message"), BAD, ids=lambda value: str(value)[-40:])
def test_training_refuses_in_one_line(
    texts: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    argv: list[str],
    message: str,
) -> None:
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert train.main(argv) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.startswith("error: ") and error.count("\n") == 1
    assert not (texts / "runs").exists()


REAL = [
    ["train.py", "--model.n_layer", "null"],
    ["train.py", "absent.yaml"],
    ["train.py", DEBUG, "--data.source", "latin1.txt"],
    ["train.py", DEBUG, "--data.source", "hub:nobody/nothing"],
    ["train.py", "--resume", "absent"],
    ["sample.py"],
    ["sample.py", "--top_p", "0"],
    ["sample.py", "--prompt"],
]


@pytest.mark.parametrize("words", REAL, ids=lambda words: " ".join(words)[-40:])
def test_real_commands_end_with_one_line(texts: Path, words: list[str]) -> None:
    script, *flags = words
    result = subprocess.run(
        [sys.executable, str(ROOT / script), *flags],
        capture_output=True,
        text=True,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )
    assert result.returncode == 2
    last = result.stderr.splitlines()[-1]
    assert last.startswith("error: ")
    assert "Traceback" not in result.stderr and "usage:" not in result.stderr
    if "hub:nobody/nothing" in flags:
        assert "could not load hub:nobody/nothing" in last and "--data.source FILE" in last


def test_folders_that_cannot_be_written_are_named(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (workplace / "runs").write_text("a file where a folder should be")
    assert train.main([DEBUG]) == 2
    assert capsys.readouterr().err.startswith("error: ")


def test_ctrl_c_before_the_loop_is_quiet(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(train, "open_batches", interrupt)
    assert train.main([DEBUG]) == 130
    assert capsys.readouterr().err == "\ninterrupted\n"


def test_help_is_not_an_error(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for main in (train.main, sample.main):
        with pytest.raises(SystemExit) as exit_:
            main(["--help"])
        assert exit_.value.code == 0
        assert capsys.readouterr().out.startswith("usage: python ")


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
    ],
)
def test_too_little_memory_says_what_to_make_smaller(
    capsys: pytest.CaptureFixture[str], error: Exception
) -> None:
    @errors.command
    def large(argv: list[str]) -> int:
        raise error

    assert large([]) == 2
    assert "out of memory; take a smaller --train.batch_size" in capsys.readouterr().err


def test_a_bug_of_ours_keeps_its_traceback() -> None:
    @errors.command
    def broken(argv: list[str]) -> int:
        raise RuntimeError("a bug")

    with pytest.raises(RuntimeError, match="a bug"):
        broken([])


def test_a_character_that_the_terminal_cannot_show_is_shown_by_its_number() -> None:
    program = "import errors; errors.command(lambda argv: print('é日') or 0)([])"
    result = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout == "\\xe9\\u65e5\n"
