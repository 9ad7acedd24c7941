"""Decoding in C: on a CPU, the model except its embeddings is one call of a function in `decode.c`,
which is compiled on first use. Most of the time goes into reading the weights. choose.py decides
whether it is used."""

import contextlib
import ctypes
import functools
import hashlib
import mmap
import os
import platform
import subprocess
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from time import perf_counter

import torch
from torch import Tensor
from torch.nn import functional as F

from model.gpt import GPT, NGRAM_ROWS

ACTIVATIONS = ["relu", "relu2", "gelu", "gelu_tanh"]  # numbered as in decode.c
LANES = 16


class CacheInC:
    """The state of decoding in C."""

    length = 0
    kept: Tensor  # the bytes in which `decode.c` keeps tokens, keys and values


class GPTInC:
    """A GPT whose `forward` calls `decode.c` on a copy of the weights.

    It shares the model's embeddings, and has none of its modules. It has no gradients.
    """

    def __init__(self, model: GPT, dtype: torch.dtype = torch.float32) -> None:
        """
        Args:
            model: in float32 on the CPU.
            dtype: keep the matrices in this type, float32 or bfloat16.

        Raises:
            ValueError: for a model that `decode.c` does not support.
        """
        self.config = config = model.config
        self.vocab_size = model.token_embedding.num_embeddings
        if config.norm != "layer":
            raise ValueError(f"decode.c does not support model.norm {config.norm}")
        if config.activation not in ACTIVATIONS:
            raise ValueError(f"decode.c does not support model.activation {config.activation}")
        shape = [len(model.blocks), config.n_embd, config.n_head, config.n_kv_head or config.n_head]
        shape += [config.mlp_ratio * config.n_embd, self.vocab_size, config.block_size]
        shape += [config.qk_norm, config.positions == "rotary"]
        shape += [ACTIVATIONS.index(config.activation), config.positions == "learned"]
        shape += [config.ngrams, NGRAM_ROWS, *config.windows]
        self.shape = (ctypes.c_int * len(shape))(*shape)
        self.choose_threads = fastest_threads()
        self.threads = next(self.choose_threads)
        self.library = compile_library(dtype)
        self.library.forward.argtypes = [*[ctypes.c_void_p] * 6, *[ctypes.c_int] * 4]
        count_weights, count_cache = self.library.count_weights, self.library.count_cache
        count_weights.restype = count_cache.restype = ctypes.c_int64
        self.cache_size = count_cache(self.shape)
        parts = [part.flatten().view(torch.uint8) for part in laid_out(model, dtype)]
        self.weights = huge(count_weights(self.shape))
        modules = model.token_embedding, model.position_embedding, *model.ngram_embeddings
        self.tables = [
            each.weight.float().contiguous() if each else torch.empty(0, config.n_embd)
            for each in modules
        ]
        widths = {table.size(1) for table in self.tables}
        if sum(map(len, parts)) != len(self.weights) or widths != {config.n_embd}:
            raise ValueError("the weights do not have the shapes that decode.c reads")
        torch.cat(parts, out=self.weights)
        tables = (ctypes.c_void_p * len(modules))(*[each.data_ptr() for each in self.tables])
        self.addresses = self.shape, self.weights.data_ptr(), tables

    def forward(self, tokens_BT: Tensor, cache: CacheInC | None = None) -> Tensor:
        """See `GPT.forward`."""
        cache = cache or self.new_cache()
        B, T = tokens_BT.shape
        start, end = cache.length, cache.length + T
        if end > self.config.block_size:
            raise ValueError(f"{end} positions, but block_size is {self.config.block_size}")
        cache.length = end
        if start == 0:
            cache.kept = huge(B * self.cache_size)
        tokens_BT = tokens_BT.contiguous()
        logits_BTV = torch.empty(B, T, self.vocab_size)
        buffers = tokens_BT.data_ptr(), logits_BTV.data_ptr(), cache.kept.data_ptr()
        # On a long prompt, threads work for longer than they wait for each other.
        threads = self.threads if T <= 64 else torch.get_num_threads()
        began = perf_counter()
        done = self.library.forward(*self.addresses, *buffers, B, T, start, threads)
        if done != 1:
            raise IndexError("a token is not in the vocabulary") if done else MemoryError
        if T == 1:
            self.threads = self.choose_threads.send(perf_counter() - began)
        return logits_BTV

    def new_cache(self) -> CacheInC:
        """Return an empty cache for decoding."""
        return CacheInC()


def fastest_threads() -> Generator[int, float, None]:
    """Yield the number of threads for the next token, one or all; receive the seconds it took.

    If other programs keep the cores busy, threads that wait for each other can be ten times slower
    than one. All threads are used as long as they are faster than the mean of one. When they have
    lost the time of 16 tokens, one thread decodes for ten times as long as they lost. The logits do
    not depend on the number of threads.
    """
    rest = 0.0
    while True:
        tokens, seconds = 0, 0.0
        while tokens < 8 or seconds < rest:
            seconds += yield 1
            tokens += 1
        one, lost, rest = seconds / tokens, 0.0, 0.0
        for _ in range(640):  # then measure one thread again
            lost = max(0.0, lost + (yield torch.get_num_threads()) - one)
            if lost > 16 * one:
                rest = min(10 * lost, 10)  # the process may have been suspended
                break


@torch.no_grad()
def laid_out(model: GPT, dtype: torch.dtype) -> Iterator[Tensor]:
    """Yield the weights as `decode.c` reads them, in the order of the modules: for a norm, its
    weights, then its biases; for a linear layer, panels of 16 outputs, each with the biases and
    then the weights of each input, as `dtype`. In bfloat16, the inputs are in pairs."""
    if model.rotary:
        yield from model.rotary.buffers()
    for module in (*model.blocks.modules(), model.final_norm, model.head or model.token_embedding):
        if (weight := getattr(module, "weight", None)) is None:
            continue
        bias = getattr(module, "bias", None)
        bias = torch.zeros(len(weight)) if bias is None else bias
        if weight.dim() == 1:
            yield torch.cat((weight, bias))
            continue
        rows = -len(bias) % LANES
        padded = F.pad(weight, (0, weight.size(1) % 2, 0, rows)).to(dtype)
        inputs = padded.unflatten(0, (-1, LANES)).unflatten(2, (-1, 4 // dtype.itemsize))
        parts = F.pad(bias, (0, rows)).view(-1, LANES), inputs.transpose(1, 2).flatten(1)
        yield torch.cat([part.view(torch.uint8) for part in parts], dim=1)


def huge(size: int) -> Tensor:
    """Return a tensor of bytes, in huge pages (2 MB) if Linux supports them.

    With pages of 4 KB, TLB misses take a third of the time to read the weights.
    """
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE)
    with contextlib.suppress(AttributeError, OSError):  # a system without such pages
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.uint8)


@functools.cache
def compile_library(dtype: torch.dtype) -> ctypes.CDLL:
    """Compile `decode.c` for this processor, once. The library is kept in `__pycache__`.

    Raises:
        OSError, CalledProcessError: if it cannot be compiled or written.
    """
    if os.name != "posix":  # GCC's vectors are not aligned on the stack of Windows
        raise OSError("decode.c is compiled on Linux and macOS only")
    source = Path(__file__).with_suffix(".c")
    native = "-mcpu=native" if platform.machine() in ("arm64", "aarch64") else "-march=native"
    command = ["cc", "-O3", "-w", native, "-fno-math-errno", "-shared", "-fPIC", str(source), "-lm"]
    command += [f"-DBFLOAT16={int(dtype == torch.bfloat16)}"]
    command += [] if sys.platform == "darwin" else ["-fopenmp"]  # Apple's compiler has no OpenMP
    made_of = repr((source.read_text(), command, torch.cpu.get_capabilities())).encode()
    path = source.parent / "__pycache__" / f"decode-{hashlib.sha256(made_of).hexdigest()[:16]}.so"
    with contextlib.suppress(OSError):  # absent, or it does not load
        return ctypes.CDLL(str(path))
    path.parent.mkdir(exist_ok=True)
    made = path.with_suffix(f".{os.getpid()}")  # another process may compile it at the same time
    subprocess.run([*command, "-o", str(made)], check=True)
    made.replace(path)
    return ctypes.CDLL(str(path))
