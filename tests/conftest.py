"""What the tests share."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

# One thread, here and in the commands that tests start: models this small are no faster on more,
# and where something else runs beside the tests, threads that wait for each other are far slower.
# PyTorch reads it when it is imported, which is below: what shares out the tests does without.
os.environ["OMP_NUM_THREADS"] = "1"

# What a shell starts in the background ignores Ctrl-C; the commands that tests stop must not.
signal.signal(signal.SIGINT, signal.default_int_handler)

# No test asserts a time, and hypothesis' deadline would be one. The examples are the same each
# time, so that the tests say the same of the same code.
settings.register_profile("glassgpt", deadline=None, derandomize=True, max_examples=40)
settings.load_profile("glassgpt")

ROOT = Path(__file__).parent.parent
DEBUG = str(ROOT / "configs" / "debug.yaml")


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to run commands in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="session")
def debug_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run of the debug config, in runs/debug of a folder of its own."""
    import train

    folder = tmp_path_factory.mktemp("debug")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert train.main([DEBUG, "--run", "debug"]) == 0
    return folder / "runs" / "debug"


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Undo what a test's run did to the number of threads."""
    import torch

    yield
    torch.set_num_threads(1)
