"""How every command loads PyTorch."""

import os
import platform
import subprocess
import sys

from tests.conftest import ROOT

LOADED = """
import common.start, gc, os
from pathlib import Path
print(os.environ["GOMP_SPINCOUNT"], gc.isenabled(), len(gc.get_objects()) < 50_000)
pages = lambda: int(Path("/proc/self/statm").read_text().split()[1])
block = bytearray(100_000_000)
held = pages()
del block
print(pages() / held)
"""


def test_memory_is_kept_threads_sleep_soon_and_pytorch_is_not_scanned() -> None:
    environment = {k: v for k, v in os.environ.items() if k == "SYSTEMROOT"}  # Windows needs it
    words = [sys.executable, "-c", LOADED]
    ended = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True)
    settings, kept = (ended.stdout + "\n\n").splitlines()[:2]
    assert settings == "10000 True True", ended.stderr
    if platform.libc_ver()[0] == "glibc":
        assert float(kept) > 0.9
