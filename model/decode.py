"""A model that only decodes: on a CPU in float32 the whole of it is one call of a function in C
(`decode.c`), compiled on first use. What takes the time is reading the weights, and calling."""

import contextlib
import ctypes
import functools
import hashlib
import math
import mmap
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from model.cache import Cache
from model.gpt import GPT

SHAPE = ["layers", "C", "H", "hidden", "V", "positions", "rms", "qk_norm", "rotary", "activation"]


class Shape(ctypes.Structure):
    """Of `decode.c`."""

    _fields_ = [(name, ctypes.c_int) for name in SHAPE]


ACTIVATIONS = ["relu2", "gelu", "gelu_tanh", "swiglu"]  # in the order of `decode.c`
LANES = 16


class CompiledGPT(GPT):
    """The same model, up to rounding, of which all but the embeddings is one call of `decode.c`.

    It only decodes: it has no gradients, no dropout, and no blocks to look into.
    """

    def __init__(self, model: GPT, library: ctypes.CDLL) -> None:
        """
        Args:
            model: in float32 on the CPU. Its embeddings are shared, other weights copied.
            library: from `compiled`.
        """
        nn.Module.__init__(self)
        config, mlp = model.config, cast(Any, model.blocks[0]).mlp
        self.config, self.run = config, library.forward
        self.token_embedding = model.token_embedding
        self.position_embedding = model.position_embedding
        self.ngram_embeddings = model.ngram_embeddings
        self.vocab_size: int = model.token_embedding.num_embeddings
        self.hidden: int = mlp.up.out_features
        sizes = [part.numel() for part in laid_out(model)]  # twice, to hold one part at a time
        self.weights = huge(sum(sizes))
        for to, part in zip(self.weights.split(sizes), laid_out(model), strict=True):
            to.view(part.shape).copy_(part)
        self.shape = Shape(
            layers=config.n_layer,
            C=config.n_embd,
            H=config.n_head,
            hidden=self.hidden,
            V=self.vocab_size,
            positions=config.block_size,
            rms=config.norm == "rmsnorm",
            qk_norm=config.qk_norm,
            rotary=config.positions == "rotary",
            activation=ACTIVATIONS.index(config.activation),
        )

    def forward(self, tokens_BT: Tensor, cache: Cache | None = None) -> Tensor:
        """See `GPT.forward`.

        Raises:
            ValueError: also when the batch size is not the cache's.
        """
        if cache is None:
            cache = self.new_cache()
        kept, start = cache.layers[0], cache.length
        x_BTC = self.embed(tokens_BT, cache)
        (B, T, C), H = x_BTC.shape, self.config.n_head
        positions, width = (n + -n % LANES for n in (self.config.block_size, C // H))
        if start == 0:
            sizes = self.config.n_layer, B, H, positions, width
            kept.k_BHSD, kept.v_BHSD = (huge(math.prod(sizes)).view(sizes) for _ in "kv")
        if kept.k_BHSD.size(1) != B:
            raise ValueError(f"{B} sequences, but the cache has {kept.k_BHSD.size(1)}")
        logits_BTV = x_BTC.new_empty(B, T, self.vocab_size)
        scratch = x_BTC.new_empty(B * T * (5 * C + self.hidden) + B * H * positions)
        buffers = self.weights, x_BTC, logits_BTV, kept.k_BHSD, kept.v_BHSD, scratch
        addresses = (ctypes.c_void_p(buffer.data_ptr()) for buffer in buffers)
        self.run(ctypes.byref(self.shape), *addresses, B, T, start, torch.get_num_threads())
        kept.length += T
        return logits_BTV

    def new_cache(self) -> Cache:
        """An empty cache for decoding, whose one layer holds the keys and values of all layers."""
        return Cache(1, self.config.block_size)


def laid_out(model: GPT) -> Iterator[Tensor]:
    """The weights as `decode.c` reads them, in its order; a norm's scales before its biases."""

    def matrix(*layers: Any) -> Tensor:
        weight = torch.cat([layer.weight.detach() for layer in layers])
        bias = weight.new_zeros(len(weight))
        if getattr(layers[0], "bias", None) is not None:
            bias = torch.cat([layer.bias.detach() for layer in layers])
        rows = F.pad(torch.cat((bias[:, None], weight), 1), (0, 0, 0, -len(bias) % LANES))
        return rows.unflatten(0, (-1, LANES)).transpose(1, 2)

    def norm(layer: Any) -> Tensor:
        scale, bias = layer.weight.detach(), getattr(layer, "bias", None)
        return torch.cat((scale, torch.zeros_like(scale) if bias is None else bias.detach()))

    if model.rotary is not None:
        yield model.rotary.cos
        yield model.rotary.sin
    block: Any
    for block in model.blocks:
        attn, mlp = block.attn, block.mlp
        yield norm(block.attn_norm)
        yield matrix(attn.query, attn.key, attn.value)
        if model.config.qk_norm:
            yield norm(attn.q_norm)
            yield norm(attn.k_norm)
        yield matrix(attn.out)
        yield norm(block.mlp_norm)
        if model.config.activation == "swiglu":
            yield matrix(mlp.gate)
        yield matrix(mlp.up)
        yield matrix(mlp.down)
    yield norm(model.final_norm)
    yield matrix(model.token_embedding if model.head is None else model.head)


def huge(size: int) -> Tensor:
    """An empty float32 tensor, in huge pages (2 MB) where Linux has them: with pages of 4 KB, TLB
    misses take a fifth of the time of reading the weights."""
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.empty(size)
    memory = mmap.mmap(-1, 4 * size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a kernel without such pages
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.float32)


@functools.cache
def compiled() -> ctypes.CDLL | str:
    """`decode.c`, compiled for this processor and kept beside Python's own; or why not."""
    compiler = shutil.which("cc")
    if compiler is None:
        return "no C compiler (cc)"
    source = Path(__file__).with_suffix(".c")
    native = "-mcpu=native" if platform.machine() in ("arm64", "aarch64") else "-march=native"
    flags = ["-O3", native, "-fno-math-errno", "-shared", "-fPIC"]
    flags += [] if sys.platform == "darwin" else ["-fopenmp"]  # Apple's compiler has no OpenMP
    info = Path("/proc/cpuinfo")
    processor = info.read_text().split("\n\n")[0].splitlines() if info.exists() else []
    knows = [line for line in processor if line.startswith(("flags", "Features"))]
    made_of = [source.read_text(), *flags, platform.machine(), *(knows or [platform.node()])]
    key = hashlib.sha256("\n".join(made_of).encode()).hexdigest()[:16]
    path = source.parent / "__pycache__" / f"decode-{key}.so"
    try:
        if not path.exists():
            path.parent.mkdir(exist_ok=True)
            made = path.with_suffix(f".{os.getpid()}")
            command = [compiler, *flags, str(source), "-lm", "-o", str(made)]
            subprocess.run(command, check=True, capture_output=True, text=True)
            os.replace(made, path)
        return ctypes.CDLL(str(path))
    except subprocess.CalledProcessError as error:
        return f"{compiler}: {error.stderr.strip().splitlines()[0] if error.stderr else error}"
    except OSError as error:
        return str(error)


def optimize_for_decoding(model: GPT) -> GPT:
    """The model for decoding only: in float32 on a CPU with a C compiler, a compiled one that is
    the same up to rounding; elsewhere the model itself."""
    weight = model.token_embedding.weight
    if weight.device.type == "cpu" and weight.dtype == torch.float32:
        library = compiled()
        if not isinstance(library, str):
            return CompiledGPT(model, library)
    return model
