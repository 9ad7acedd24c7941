"""One attention layer, step by step: name, formula, shape, and what the numbers are.

The steps are those of description E of multi-head attention, from (B, T, C) to (B, T, C). They are
recomputed here from the layer's own weights, one after the other, and `trace` refuses to show
them unless they end where the model itself ended.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from common.tables import print_table, visible
from lens.capture import LayerPass
from model.attention import MultiHeadAttention

SHOWN = 8  # rows and columns of a printed matrix, at most


@dataclass(frozen=True)
class Step:
    """One line of the table."""

    name: str
    formula: str
    letters: str
    """The shape in letters; its numbers are the tensor's."""

    value: Tensor
    masked: Tensor | None = None
    """Where a cell is hidden, of the shape of the value; such cells count in no statistic."""

    rows_sum: bool = False
    """Whether the sum of a row says something."""


def trace(attn: MultiHeadAttention, x_BTC: Tensor, seen: LayerPass | None = None) -> list[Step]:
    """The steps of causal self-attention on what a layer read.

    Args:
        seen: what the model did with the same `x`, to check against.

    Raises:
        FloatingPointError: when what the layer computed is not finite.
        RuntimeError: when the steps do not end where the model ended.
    """
    with torch.no_grad():
        steps = list(walk(attn, x_BTC))
        output = attn(x_BTC, causal=True) if seen is None else seen.output_BTC
    if not output.isfinite().all():
        raise FloatingPointError("what this layer computes is not finite: its weights are no use")
    # Rounding in one order or the other, in float32 or bfloat16.
    if not torch.allclose(
        steps[-1].value, output, rtol=1e-3, atol=1e-3 * float(output.abs().max())
    ):
        raise RuntimeError("the traced steps are not what the model computed")
    return steps


def walk(attn: MultiHeadAttention, x_BTC: Tensor) -> Iterator[Step]:
    """Each step from the one before it."""
    T, D = x_BTC.size(1), x_BTC.size(2) // attn.n_head
    yield Step("input", "x, the normalised stream", "B,T,C", x_BTC)
    split: dict[str, Tensor] = {}
    for name, layer in (("Q", attn.query), ("K", attn.key), ("V", attn.value)):
        bias = "" if layer.bias is None else f" + b_{name.lower()}"
        projected = F.linear(x_BTC, layer.weight, layer.bias)
        yield Step(name, f"x W_{name.lower()}{bias}", "B,T,C", projected)
        split[name] = attn.split_heads(projected)
    for name, tensor in split.items():
        letters = "B,H,T,D" if name == "Q" else "B,H,S,D"
        yield Step(f"{name} by heads", f"{name} cut into H pieces of D", letters, tensor)
    for name, norm in (("Q", attn.q_norm), ("K", attn.k_norm)):
        letters = "B,H,T,D" if name == "Q" else "B,H,S,D"
        if not isinstance(norm, nn.Identity):
            split[name] = norm(split[name])
            yield Step(f"{name} normalised", f"LayerNorm({name}), each head", letters, split[name])
        if attn.rotary is not None:
            split[name] = attn.rotary(split[name], 0)
            yield Step(f"{name} rotated", f"{name} turned by its position", letters, split[name])
    products = split["Q"] @ split["K"].transpose(-2, -1)
    yield Step("products", "Q K^T", "B,H,T,S", products)
    scores = products / math.sqrt(D)
    yield Step("scores", "Q K^T / sqrt(D)", "B,H,T,S", scores)
    hidden = torch.ones(T, T, dtype=torch.bool, device=x_BTC.device).triu(1).expand(scores.shape)
    masked = scores.masked_fill(hidden, -math.inf)
    yield Step("masked", "-inf where key > query", "B,H,T,S", masked, hidden)
    weights = masked.softmax(dim=-1)
    yield Step("weights A", "softmax over keys", "B,H,T,S", weights, hidden, rows_sum=True)
    z_BHTD = weights @ split["V"]
    yield Step("heads z", "A V", "B,H,T,D", z_BHTD)
    merged = attn.merge_heads(z_BHTD)
    yield Step("merged", "the heads side by side", "B,T,C", merged)
    bias = "" if attn.out.bias is None else " + b_O"
    yield Step("output", f"merged W_O{bias}", "B,T,C", attn.out(merged))


def print_steps(steps: list[Step]) -> None:
    """The table."""
    heading = ["step", "formula", "shape", "here", "row sums", "masked", "min", "mean", "max"]
    rows = [heading]
    for step in steps:
        value, hidden = step.value.double(), step.masked
        open_cells = value if hidden is None else value[~hidden]
        sums = value.sum(-1)
        rows.append(
            [
                step.name,
                step.formula,
                f"({step.letters})",
                str(tuple(value.shape)),
                f"{sums.min():.4f} to {sums.max():.4f}" if step.rows_sum else "",
                "" if hidden is None else f"{int(hidden.sum()):,} of {hidden.numel():,}",
                f"{open_cells.min():.3f}",
                f"{open_cells.mean():.3f}",
                f"{open_cells.max():.3f}",
            ]
        )
    print_table(rows, words=4)


def print_matrix(title: str, matrix_TS: Tensor, names: list[str], hidden: Tensor | None) -> None:
    """The first rows and columns of a matrix, queries down and keys across.

    Args:
        names: of the positions.
        hidden: cells that are masked, printed as a dot: not zero, but not there.
    """
    n = min(SHOWN, len(names))
    print(f"\n{title}")
    rows = [["query \\ key", *(f"{i} {name}" for i, name in enumerate(names[:n]))]]
    for q in range(n):
        cells = [
            "·" if hidden is not None and hidden[q, k] else f"{matrix_TS[q, k]:.3f}"
            for k in range(n)
        ]
        rows.append([f"{q} {names[q]}", *cells])
    print_table(rows)
    if len(names) > n:
        print(f"(the first {n} of {len(names)} positions)")


def names_of(tokens: list[str]) -> list[str]:
    """The tokens of a prompt as names of rows and columns."""
    return [visible(token) for token in tokens]
