"""Features that Windows and macOS lack are optional; both are simulated on any system."""

import ctypes
import os
import platform
import runpy
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from common.atomic import write_atomically
from model.config import ModelConfig
from model.gpt import GPT
from sampling.decode import compile_library, optimize_for_decoding
from tests.conftest import ROOT


def fail(*args: Any, **options: Any) -> Any:
    raise OSError(*map(str, args))


def test_writing_signals_and_decoding_work_on_windows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Windows cannot open folders or load the program itself as a library, and lacks SIGHUP."""
    path, gpt = tmp_path / "file", GPT(ModelConfig(), 9)
    start, runtime = str(ROOT / "common/start.py"), str(ROOT / "training/runtime.py")
    compile_library.cache_clear()
    with monkeypatch.context() as patch:  # pytest needs the originals to report a failure
        patch.setattr(os, "name", "nt")
        patch.setattr(sys, "platform", "win32")
        patch.setattr(os, "open", fail)
        patch.setattr(ctypes, "CDLL", fail)
        patch.delattr(signal, "SIGHUP", raising=False)
        write_atomically(path, b"new")
        assert runpy.run_path(start)["mallopt"] is None
        assert runpy.run_path(runtime)["SIGNALS"] == {signal.SIGINT, signal.SIGTERM}
        assert optimize_for_decoding(gpt) is gpt
    assert path.read_bytes() == b"new"
    assert "compiled on Linux and macOS only" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("system", "machine", "flags"),
    [
        ("darwin", "arm64", {"-mcpu=native"}),
        ("linux", "aarch64", {"-mcpu=native", "-fopenmp"}),
    ],
)
def test_compiler_flags_match_the_platform(
    system: str, machine: str, flags: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "name", "posix")
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    monkeypatch.setattr(subprocess, "run", fail)
    with pytest.raises(OSError, match="cc") as error:
        compile_library.__wrapped__(torch.float32)
    assert flags == {f for f in ("-mcpu=native", "-march=native", "-fopenmp") if f in str(error)}
