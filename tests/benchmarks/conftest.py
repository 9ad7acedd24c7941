"""Benchmarks run in this process."""

from contextlib import chdir
from pathlib import Path

import pytest

import train
from benchmarks import common


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run train.py and measurements in this process, and do not measure the machine's peak."""

    def run_here(arguments: list[str], folder: Path) -> tuple[float, str]:
        monkeypatch.setenv("GLASSGPT_CACHE", "cache")  # which the last measurement changed
        with chdir(folder):
            assert train.main(arguments[1:]) == 0
        return 1.5, ""

    monkeypatch.setattr(common, "run_command", run_here)
    monkeypatch.setattr(common, "in_fresh_process", lambda function, *args: function(*args))
    monkeypatch.setattr(common, "matmul_gflops", lambda device, dtype: 0.5)
