"""The first import of every command: signals, settings that must precede PyTorch, and PyTorch."""

import ctypes
import gc
import os
import signal
import sys
import time

BEGAN = time.perf_counter()  # approximate start of the process

# Let waiting threads sleep soon: if another program keeps a core busy, a spinning thread delays the
# thread that it waits for. PyTorch's OpenMP reads this variable when it is loaded.
os.environ.setdefault("GOMP_SPINCOUNT", "10000")

# Let the C library keep freed memory. A training step allocates what the previous step freed. If
# this memory were returned to the system, mapping and zeroing its pages again would take a tenth to
# a fifth of a step.
mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
if mallopt:
    M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h
    if mallopt(M_MMAP_THRESHOLD, 2**30) == 0:
        mallopt(M_MMAP_THRESHOLD, 2**25)  # older glibc's maximum
    mallopt(M_TRIM_THRESHOLD, 2**31 - 1)

# The 250,000 objects of PyTorch live until the end. Scanning them would take a seventh of the
# import time, and 0.1 s in every full garbage collection later.
gc.disable()
# Meanwhile, Ctrl-C ends the command at once and quietly, unless it is ignored, as in the background
# of a script.
handler = signal.getsignal(signal.SIGINT)
if handler != signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
import torch  # noqa: E402, F401

# Until `main` starts, Ctrl-C raises KeyboardInterrupt, which is reported in one line.
sys.excepthook = lambda kind, error, trace: (
    print("\ninterrupted", file=sys.stderr)
    if kind is KeyboardInterrupt
    else sys.__excepthook__(kind, error, trace)
)
signal.signal(signal.SIGINT, handler)
gc.freeze()
gc.enable()
