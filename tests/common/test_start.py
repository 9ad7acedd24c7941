"""How every command loads PyTorch."""

import platform
import subprocess
import sys

from tests.conftest import ROOT

FREED = """
import common.start
from pathlib import Path
pages = lambda: int(Path("/proc/self/statm").read_text().split()[1])
block = bytearray(100_000_000)
held = pages()
del block
print(pages() / held)
"""
THREADS = "import common.start, os; print(os.environ['GOMP_SPINCOUNT'])"
SEARCHED = "import common.start, gc; print(gc.isenabled(), len(gc.get_objects()) < 50_000)"


def printed(code: str, **environment: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    ).stdout


def test_freed_memory_is_kept_where_the_c_library_can_be_told() -> None:
    if platform.libc_ver()[0] == "glibc":
        assert float(printed(FREED)) > 0.9


def test_what_the_user_says_of_waiting_threads_stands() -> None:
    assert printed(THREADS) == "10000\n"
    assert printed(THREADS, GOMP_SPINCOUNT="7") == "7\n"


def test_what_pytorch_is_made_of_is_not_searched_for_what_nobody_needs() -> None:
    assert printed(SEARCHED) == "True True\n"
