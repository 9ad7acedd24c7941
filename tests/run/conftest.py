"""A finished run, and all commands that open one."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import sample
import study
import train
from benchmarks import compare
from tests.conftest import DEBUG

COMMANDS: list[tuple[Callable[..., int], list[str]]] = [
    (train.main, ["--resume=runs/a", "--train.max_steps=5"]),
    (train.main, ["--init_from=runs/a", "--train.max_steps=1"]),
    (train.main, ["--evaluate=runs/a"]),
    (sample.main, ["runs/a", "--max_new_tokens=2"]),
    (study.main, ["trace", "runs/a", "--prompt=an"]),
    (compare.main, ["runs/a", "runs/a"]),  # puts the weights into no model
]
Errors = Callable[..., list[str]]


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of four steps on a short text."""
    folder = tmp_path_factory.mktemp("finished")
    (folder / "short.txt").write_text("a short text, and another one\n" * 50)
    flags = [f"--data.source={folder / 'short.txt'}", "--train.max_steps=4", "--train.eval_every=2"]
    flags += ["--train.tensorboard=false", "--train.snapshots=2"]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert train.main([DEBUG, *flags, "--run=a"]) == 0
    return folder / "runs" / "a"


@pytest.fixture
def run(finished: Path, workplace: Path) -> Path:
    """A copy of it, runs/a of an empty folder."""
    shutil.copytree(finished, "runs/a")
    shutil.copytree(finished.parent.parent / "cache", "cache")  # its text was read here
    return Path("runs/a")


@pytest.fixture
def errors(capsys: pytest.CaptureFixture[str]) -> Errors:
    """The one line that each of some commands ends with."""

    def errors_of(commands: list[tuple[Callable[..., int], list[str]]]) -> list[str]:
        lines = []
        for main, argv in commands:
            capsys.readouterr()
            assert main(argv) == 2, argv
            line = capsys.readouterr().err
            assert line.startswith("error: ") and line.count("\n") == 1, line
            assert len(line) < 1500 and "\x1b" not in line
            lines.append(line)
        return lines

    return errors_of
