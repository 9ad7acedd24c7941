"""A model that only decodes, made faster: it multiplies matrices by a few rows at a time, so that
what takes the time is reading the weights, and calling."""

import ctypes
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from model.attention import MultiHeadAttention
from model.cache import KVCache
from model.config import ModelConfig
from model.gpt import GPT, Block


class Int8Linear(nn.Module):
    """x W^T + b in bfloat16, W rounded to 8-bit integers times a scale for each output.

    A weight is off by at most half of 1/127 of the largest of its row. It takes a quarter of
    float32's memory, and of the time to read it.
    """

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        weight = linear.weight.detach().float()
        scale = weight.abs().amax(dim=1).clamp(min=1e-12) / 127
        # The kernel reads inputs sixteen at a time, past the end of a row if need be.
        self.padding = -weight.size(1) % 16
        rounded = (weight / scale[:, None]).round().to(torch.int8)
        self.weight = F.pad(rounded, (0, self.padding)).contiguous()
        self.scale = scale.bfloat16()
        self.bias = None if linear.bias is None else linear.bias.detach().bfloat16()

    def forward(self, x: Tensor) -> Tensor:
        """(..., inputs) -> (..., outputs), of bfloat16."""
        rows = F.pad(x.reshape(-1, x.size(-1)), (0, self.padding)).contiguous()
        y = torch._weight_int8pack_mm(rows, self.weight, self.scale)
        y = y if self.bias is None else y + self.bias
        return y.view(*x.shape[:-1], -1)


class DecodingAttention(nn.Module):
    """`MultiHeadAttention`, causal, up to rounding, in a third fewer calls.

    Queries, keys and values are one product; queries and keys are normalized and rotated together,
    the scales of their norms being part of the cosines and sines.
    """

    def __init__(self, attention: MultiHeadAttention, block_size: int) -> None:
        super().__init__()
        self.n_head, self.attend, self.out = attention.n_head, attention.attend, attention.out
        layers = (attention.query, attention.key, attention.value)
        C, bias = attention.out.in_features, attention.out.bias is not None
        self.joint: nn.Module = nn.Linear(C, 3 * C, bias, device="meta")
        weights = {
            name: torch.cat([layer.get_parameter(name).detach() for layer in layers])
            for name in self.joint.state_dict()
        }
        self.joint.load_state_dict(weights, assign=True)

        norms, rotary = (attention.q_norm, attention.k_norm), attention.rotary
        scales = [norm.weight.detach() for norm in norms if isinstance(norm, nn.LayerNorm)]
        self.normed, self.rotated = bool(scales), bool(scales) or rotary is not None
        like, D = weights["weight"], C // self.n_head
        scale = torch.stack(scales or [like.new_ones(D)] * 2).view(2, 1, 1, 1, D)
        cos_TD = like.new_ones(block_size, D) if rotary is None else rotary.cos
        sin_TD = like.new_zeros(block_size, D) if rotary is None else rotary.sin
        self.cos, self.sin = scale * cos_TD, scale.roll(D // 2, -1) * sin_TD

    def forward(self, x_BTC: Tensor, *, causal: bool, cache: KVCache | None = None) -> Tensor:
        """(B, T, C) -> (B, T, C), see `MultiHeadAttention.forward`."""
        B, T, C = x_BTC.shape
        D = C // self.n_head
        heads = self.joint(x_BTC).view(B, T, 3, self.n_head, D).permute(2, 0, 3, 1, 4)
        qk, v_BHSD = heads[:2], heads[2]  # (2, B, H, T, D)
        if self.normed:
            qk = F.layer_norm(qk, (D,))
        if self.rotated:
            start = cache.length if cache is not None else 0
            cos, sin = (table[..., start : start + T, :] for table in (self.cos, self.sin))
            qk = torch.addcmul(qk * cos, qk.roll(D // 2, -1), sin)
        q_BHTD, k_BHSD = qk
        if cache is not None:
            k_BHSD, v_BHSD = cache.append(k_BHSD, v_BHSD)
        z_BHTD = self.attend(q_BHTD, k_BHSD, v_BHSD, None, causal)
        return self.out(z_BHTD.transpose(1, 2).flatten(2))


class Affine(ctypes.Structure):
    """Of `decode.c`."""

    _fields_ = [("weight", ctypes.c_void_p), ("bias", ctypes.c_void_p)]


INTEGERS = ("C", "H", "hidden", "positions", "rms", "qk_norm", "activation")
AFFINE = ("attn_norm", "qkv", "out", "mlp_norm", "gate", "up", "down")


class BlockInC(ctypes.Structure):
    """`Block` of `decode.c`."""

    _fields_ = [
        *((name, ctypes.c_int) for name in INTEGERS),
        *((name, Affine) for name in AFFINE),
        *((name, ctypes.c_void_p) for name in ("cos", "sin")),
    ]


ACTIVATIONS = ["relu2", "gelu", "gelu_tanh", "swiglu"]  # from 2 on in `decode.c`


class CompiledBlock(nn.Module):
    """A block, up to rounding, that reads a single new position of each row in C (`decode.c`).

    One call instead of thirty, and both threads read the weights.
    """

    def __init__(self, block: Block, config: ModelConfig, library: ctypes.CDLL) -> None:
        """
        Args:
            block: in float32 on the CPU, its attention a `DecodingAttention`.
        """
        super().__init__()
        self.block: nn.Module = block
        self.run = library.block
        attn: Any = block.attn
        mlp: Any = block.mlp
        C, H, hidden = config.n_embd, config.n_head, mlp.up.out_features
        self.scratch = 5 * C + hidden + H * config.block_size  # numbers for each row
        affine = {"attn_norm": block.attn_norm, "qkv": attn.joint, "out": attn.out}
        affine |= {"mlp_norm": block.mlp_norm, **dict(mlp.named_children())}
        tables = {"cos": attn.cos, "sin": attn.sin} if attn.rotated else {}
        # C does not know who owns the numbers.
        self.kept = [*block.parameters(), *tables.values()]
        assert all(x.is_contiguous() and x.dtype == torch.float32 for x in self.kept)
        self.in_c = BlockInC(
            C=C,
            H=H,
            hidden=hidden,
            positions=config.block_size,
            rms=config.norm == "rmsnorm",
            qk_norm=config.qk_norm,
            activation=2 + ACTIVATIONS.index(config.activation),
            **{
                name: Affine(*(address(getattr(module, key, None)) for key in ("weight", "bias")))
                for name, module in affine.items()
            },
            **{name: address(table) for name, table in tables.items()},
        )

    def forward(self, x_BTC: Tensor, cache: KVCache | None = None) -> Tensor:
        """(B, T, C) -> (B, T, C), see `Block.forward`."""
        if cache is None or cache.length == 0 or x_BTC.size(1) != 1:
            return self.block(x_BTC, cache)
        B, at = x_BTC.size(0), cache.length
        x_BTC = x_BTC.clone(memory_format=torch.contiguous_format)
        scratch = x_BTC.new_empty(B * self.scratch)
        buffers = (x_BTC, cache.k_BHSD, cache.v_BHSD, scratch)
        self.run(ctypes.byref(self.in_c), *map(address, buffers), B, at)
        cache.length += 1
        return x_BTC


def address(x: Tensor | None) -> ctypes.c_void_p | None:
    return None if x is None else ctypes.c_void_p(x.data_ptr())


@functools.cache
def compiled() -> ctypes.CDLL | None:
    """`decode.c`, compiled for this processor and kept beside Python's own; None where there is no
    C compiler, or none that can."""
    compiler = shutil.which("cc")
    if compiler is None:
        return None
    source = Path(__file__).with_suffix(".c")
    flags = ["-O3", "-march=native", "-fno-math-errno", "-shared", "-fPIC"]
    flags += [] if sys.platform == "darwin" else ["-fopenmp"]  # Apple's compiler has no OpenMP
    info = Path("/proc/cpuinfo")
    processor = info.read_text().split("\n\n")[0] if info.exists() else platform.processor()
    made_of = [source.read_text(), *flags, platform.machine()]
    made_of += [line for line in processor.splitlines() if line.startswith(("flags", "Features"))]
    key = hashlib.sha256("\n".join(made_of).encode()).hexdigest()[:16]
    path = source.parent / "__pycache__" / f"decode-{key}.so"
    try:
        if not path.exists():
            path.parent.mkdir(exist_ok=True)
            with tempfile.TemporaryDirectory(dir=path.parent) as folder:
                made = Path(folder) / path.name
                command = [compiler, *flags, str(source), "-lm", "-o", str(made)]
                subprocess.run(command, check=True, capture_output=True)
                os.replace(made, path)
        return ctypes.CDLL(str(path))
    except (OSError, subprocess.CalledProcessError):
        return None


def optimize_for_decoding(model: GPT, int8: bool = False) -> GPT:
    """Replace attention and linear layers of a model that will only decode; return the model.

    Args:
        int8: round the weights to 8 bits and compute in bfloat16, which changes the numbers.
            Otherwise they stay the same up to rounding.
    """
    if int8:
        model.bfloat16()
    replace(model, MultiHeadAttention, lambda a: DecodingAttention(a, model.config.block_size))
    if int8:
        replace(model, nn.Linear, Int8Linear)
    weight = model.token_embedding.weight
    if weight.device.type == "cpu" and weight.dtype == torch.float32:
        library = compiled()
        if library is not None:
            replace(model, Block, lambda b: CompiledBlock(b, model.config, library))
    return model


def replace(model: GPT, kind: type[nn.Module], make: Callable[[Any], nn.Module]) -> None:
    """Replace each layer of a kind by what `make` makes of it."""
    for module in list(model.modules()):
        for name, child in module.named_children():
            if isinstance(child, kind):
                setattr(module, name, make(child))
