"""What the tests share."""

from pathlib import Path

import pytest
import torch
from hypothesis import settings

import train

# No test asserts a time, and hypothesis' deadline would be one.
settings.register_profile("glassgpt", deadline=None, max_examples=50)
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
    folder = tmp_path_factory.mktemp("debug")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert train.main([DEBUG, "--run", "debug"]) == 0
    return folder / "runs" / "debug"


@pytest.fixture(autouse=True)
def same_threads() -> object:
    """Undo what a test's run did to the number of threads and the random generator."""
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    yield
    torch.set_num_threads(threads)
    torch.set_rng_state(state)
    return None
