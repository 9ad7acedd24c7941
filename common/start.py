"""Imports PyTorch for every command, after settings that must precede it."""

import ctypes
import gc
import os
import sys
import time

BEGAN = time.perf_counter()  # when the process did, nearly

# Threads that wait for each other soon sleep: where another program keeps a core busy, one that
# spins keeps the other from its work. PyTorch's OpenMP reads it when it is loaded.
os.environ.setdefault("GOMP_SPINCOUNT", "10000")

# The C library keeps what is freed for what comes next, if it can be told to. A training step
# allocates what the step before it freed: returned to the system, its pages would have to be mapped
# and zeroed again, which takes a tenth to a fifth of a step.
mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
if mallopt:
    M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h
    mallopt(M_MMAP_THRESHOLD, 2**30) or mallopt(M_MMAP_THRESHOLD, 2**25)  # most, in older ones
    mallopt(M_TRIM_THRESHOLD, 2**31 - 1)

# The 250,000 objects that PyTorch makes live until the end: scanning them takes a seventh of the
# time of the import, and 0.1 s at every full garbage collection later.
gc.disable()
import torch  # noqa: E402, F401

gc.freeze()
gc.enable()
