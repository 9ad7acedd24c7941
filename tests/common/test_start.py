"""Settings with which commands load PyTorch, and modules that a run does not import."""

import platform
import subprocess
import sys
from pathlib import Path

from tests.conftest import DEBUG, ROOT

PROGRAM = f"""
import common.start, gc, os, sys
from pathlib import Path
print(os.environ["GOMP_SPINCOUNT"], gc.isenabled(), len(gc.get_objects()) < 50_000)
pages = lambda: int(Path("/proc/self/statm").read_text().split()[1])
block = bytearray(100_000_000)
held = pages() if os.path.exists("/proc/self/statm") else 0
del block
print(pages() / held if held else 0)

import train
words = ["--train.max_steps=1", "--train.sample_tokens=0", "--data.source=text.txt"]
assert train.main(["{DEBUG}", *words]) == 0
slow = ("torch._dynamo", "torch._inductor", "datasets")
print(*[name for name in sys.modules if name.startswith(slow)], file=sys.stderr)
raise KeyboardInterrupt
"""


def test_start_settings_apply_and_no_slow_module_is_imported(workplace: Path) -> None:
    """Threads sleep soon, garbage collection skips PyTorch's objects, freed memory is kept, and
    Ctrl-C outside `main` is one line. Importing PyTorch's compiler would take as long as 100 steps
    of a small model."""
    Path("text.txt").write_text("a text that is long enough\n" * 20)
    words, environment = [sys.executable, "-c", PROGRAM], {"PYTHONPATH": str(ROOT)}
    ended = subprocess.run(words, env=environment, capture_output=True, text=True)
    settings, kept, *_ = ended.stdout.splitlines()
    assert settings == "10000 True True" and ended.returncode in (-2, 130)
    assert ended.stderr.split() == ["interrupted"]
    if platform.libc_ver()[0] == "glibc":
        assert float(kept) > 0.9
