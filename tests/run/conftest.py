"""A finished run, and a header that says something else."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import train
from tests.conftest import DEBUG


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
    """A copy of it, runs/a of an empty folder, and of the cache of its text."""
    shutil.copytree(finished.parent.parent, ".", dirs_exist_ok=True)
    return Path("runs/a")


def rewrite(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change the header of a checkpoint, which is whole and says something else then."""
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata()
    tensors, plain = load_file(path), json.loads(metadata["header"])
    change(plain)
    header = json.dumps(plain)
    save_file(tensors, path, metadata | {"header": header})
