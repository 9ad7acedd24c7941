"""What each choice in attention does: variants composed from the model's primitives, set side by
side on the same weights and the same text. The model itself has no flag for any of them.

A to D are the descriptions of multi-head attention that docs/studying.md lists. Every comparison
is numbers and one sentence.
"""

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from lens.capture import LayerPass, blocks_of
from lens.checks import (
    by_formula,
    by_torch,
    head_by_head,
    relative_error,
    weights_of,
    with_gradients,
)
from lens.metrics import entropy
from lens.walk import Step, walk
from model.attention import MultiHeadAttention, attention, causal_mask
from model.gpt import GPT

FINITE = -10_000.0  # what description C adds to a hidden score


@dataclass(frozen=True)
class Comparison:
    """Some numbers, and why they are what they are."""

    title: str
    numbers: dict[str, float]
    why: str

    texts: dict[str, str] = field(default_factory=dict)
    """What models generate, by which model."""


def furthest(a: Tensor, b: Tensor) -> float:
    """The largest relative error."""
    return relative_error(a, b).max().item()


def change(a: Tensor, b: Tensor) -> float:
    """|a - b| / |b|, of all numbers together."""
    return float((a - b).norm() / b.norm().clamp(min=1e-30))


def layer_comparisons(
    attn: MultiHeadAttention, seen: LayerPass, source_BSC: Tensor
) -> dict[str, Callable[[], Comparison]]:
    """Descriptions A to D on one trained layer, by name, each computed when it is called.

    Args:
        seen: what the layer did in a forward pass.
        source_BSC: what the same layer read in another text, of another length, for
            cross-attention.
    """
    x_BTC = seen.x_BTC
    return {
        "torch": lambda: with_torch(attn, x_BTC),
        "heads": lambda: one_head_or_many(attn, seen),
        "output": lambda: with_or_without_output(attn, seen),
        "split": lambda: one_projection_per_head(attn, x_BTC),
        "cross": lambda: plain_causal_cross(attn, x_BTC, source_BSC),
        "scale": lambda: with_or_without_scale(attn, x_BTC),
        "finite_mask": lambda: finite_mask(attn, x_BTC),
        "relu": lambda: relu_after_output(seen),
        "polarity": lambda: two_polarities(attn, x_BTC),
    }


def classical(attn: MultiHeadAttention) -> MultiHeadAttention:
    """The layer with the same four matrices, without rotary positions and QK-norm."""
    bias = attn.out.bias is not None
    twin = MultiHeadAttention(attn.out.out_features, attn.n_head, bias=bias).to(attn.out.weight)
    twin.load_state_dict({k: v for k, v in attn.state_dict().items() if "norm" not in k})
    return twin.eval()


def with_torch(attn: MultiHeadAttention, x_BTC: Tensor) -> Comparison:
    """A: three projections, heads, softmax(QK^T / sqrt(D)) V, output projection."""
    T, numbers = x_BTC.size(1), {}
    for name, mask in (("plain", None), ("causal", causal_mask(T, T))):
        ours, (gradient,) = with_gradients(partial(classical(attn), mask=mask), x_BTC)
        theirs, (their_gradient,) = with_gradients(partial(by_torch, attn, mask=mask), x_BTC)
        numbers[f"{name}: output"] = furthest(ours, theirs)
        numbers[f"{name}: gradient"] = furthest(gradient, their_gradient)
    how = "differ by rounding" if any(numbers.values()) else "agree here to the last bit"
    return Comparison(
        "A: this module against torch.nn.MultiheadAttention with the same four matrices",
        numbers,
        f"Two programs of one formula {how}. (Both without rotary positions and QK-norm, which "
        f"PyTorch's module does not have.)",
    )


def one_wide_head(
    attn: MultiHeadAttention, q_BHTD: Tensor, k_BHSD: Tensor, v_BHSD: Tensor, mask: Tensor | None
) -> tuple[Tensor, Tensor]:
    """All heads' queries, keys and values as those of one head: (B, T, C), (B, 1, T, S)."""
    q, k, v = (attn.merge_heads(x)[:, None] for x in (q_BHTD, k_BHSD, v_BHSD))
    z_B1TC, weights_B1TS = attention(q, k, v, mask)
    return z_B1TC[:, 0], weights_B1TS


def one_head_or_many(attn: MultiHeadAttention, seen: LayerPass) -> Comparison:
    """B: a single relation between positions, against several."""
    z_BTC, one_A = one_wide_head(attn, seen.q_BHTD, seen.k_BHSD, seen.v_BHSD, seen.mask)
    H, many_A = attn.n_head, seen.weights_BHTS
    entropy_H = entropy(many_A).mean(0)
    numbers = {
        "entropy of one head as wide as the layer (1 is uniform)": float(entropy(one_A).mean()),
        f"entropy of the {H} heads, least": float(entropy_H.min()),
        f"entropy of the {H} heads, most": float(entropy_H.max()),
        "change of the heads' outputs": change(z_BTC, attn.merge_heads(seen.z_BHTD)),
    }
    if H > 1:
        i, j = torch.triu_indices(H, H, 1)
        elsewhere = (many_A[:, i] - many_A[:, j]).abs().sum(-1) / 2
        numbers["attention that two heads place differently, mean"] = float(elsewhere.mean())
    return Comparison(
        f"B: one head against {H}, on the same queries and keys",
        numbers,
        "One softmax over the sum of all heads' scores places the attention once; several place it "
        "several times, each in its own way, for the same number of products.",
    )


def with_or_without_output(attn: MultiHeadAttention, seen: LayerPass) -> Comparison:
    """B: concatenated heads, and those times W_O."""
    H, merged_BTC = attn.n_head, attn.merge_heads(seen.z_BHTD)
    square = attn.out.weight.detach().square()
    square_HH = square.unflatten(0, (H, -1)).unflatten(2, (H, -1)).sum((1, 3))
    total = square_HH.sum().clamp(min=1e-30)
    return Comparison(
        "B: with and without the output projection W_O",
        {
            "change of the layer's output without it": change(merged_BTC, seen.output_BTC),
            "fraction of W_O that carries one head's channels into another's": float(
                square_HH.fill_diagonal_(0).sum() / total
            ),
        },
        "Without W_O each head writes to its own D channels of the residual stream only; with it, "
        "to any.",
    )


def one_projection_per_head(attn: MultiHeadAttention, x_BTC: Tensor) -> Comparison:
    """D's open question: the paper has W_q, W_k, W_v for each head, the code one of each, split."""
    weights = weights_of(attn)
    shared, shared_gradients = with_gradients(partial(by_formula, attn), x_BTC, weights)
    split, split_gradients = with_gradients(partial(head_by_head, attn), x_BTC, weights)
    interleaved = copy.deepcopy(attn)
    C, H = attn.out.out_features, attn.n_head
    order = torch.arange(C).view(C // H, H).T.reshape(-1)  # head h takes rows h, h + H, h + 2H ...
    with torch.no_grad():
        for layer in (interleaved.query, interleaved.key, interleaved.value):
            for parameter in layer.parameters():
                parameter.copy_(parameter[order])
        other = head_by_head(interleaved, x_BTC)
    return Comparison(
        "D's question: one projection split into heads, or W_q, W_k, W_v for each head?",
        {
            "output, head h owning rows h*D to (h+1)*D": furthest(split, shared),
            "gradients of x, W_q, W_k, W_v, W_O": max(
                map(furthest, shared_gradients, split_gradients)
            ),
            "output, head h owning every H-th row instead": furthest(other, shared),
        },
        "They are the same map: stacking the heads' matrices gives the shared one, rows h*D to "
        "(h+1)*D being head h; in another order the rows are other heads.",
    )


@torch.no_grad()
def plain_causal_cross(attn: MultiHeadAttention, x_BTC: Tensor, source_BSC: Tensor) -> Comparison:
    """D: one module, called in three ways."""
    layer = classical(attn)
    plain, causal = layer(x_BTC), layer(x_BTC, causal=True)
    itself, cross = layer(x_BTC, x_BTC), layer(x_BTC, source_BSC)
    A = walk(layer, x_BTC, causal=False)["weights A"].value
    return Comparison(
        "D: plain, causal and cross-attention with the same matrices (no rotary, no QK-norm)",
        {
            "fraction of attention that goes to later tokens without a mask": float(
                A.triu(1).sum() / A.sum()
            ),
            "causal against plain, at the first position": change(causal[:, 0], plain[:, 0]),
            "causal against plain, at the last position": change(causal[:, -1], plain[:, -1]),
            "cross with the text itself as source against plain": furthest(itself, plain),
            f"cross with {source_BSC.size(1)} positions of another text against plain": change(
                cross, plain
            ),
            f"rows of the cross output, for {x_BTC.size(1)} queries": float(cross.size(1)),
        },
        "The last position may attend to everything either way; cross-attention has as many "
        "outputs as queries, however long the source.",
    )


def with_or_without_scale(attn: MultiHeadAttention, x_BTC: Tensor) -> Comparison:
    """C does not divide by sqrt(D)."""
    numbers: dict[str, float] = {}
    for name, scaled in (("with 1/sqrt(D)", True), ("without", False)):
        steps = walk(attn, x_BTC, scaled=scaled)
        A, z = steps["weights A"].value, steps["heads z"].value
        generator = torch.Generator().manual_seed(0)
        loss = (z * torch.randn(z.shape, generator=generator)).sum()
        scores = steps["scores" if scaled else "products"].value
        (gradient,) = torch.autograd.grad(loss, scores)
        numbers |= {
            f"{name}: entropy (1 is uniform)": float(entropy(A.detach()).mean()),
            f"{name}: largest weight of a row, mean": float(A.detach().amax(-1).mean()),
            f"{name}: gradient at the scores, of a random loss": float(gradient.norm()),
        }
    D = attn.out.out_features // attn.n_head
    return Comparison(
        "C: with and without the scale 1/sqrt(D)",
        numbers,
        f"Scores {math.sqrt(D):.1f} times as large push each row towards one key; the more certain "
        "a softmax is, the less gradient it passes back to its scores.",
    )


def leak_gap(dtype: torch.dtype, leak: float) -> float:
    """By how much a hidden score must exceed the visible one for a mask that adds `FINITE` to let
    more than `leak` of the attention through, in this type; found by bisection over whole numbers.
    """

    def leaked(gap: int) -> float:
        scores = torch.tensor([0.0, float(gap)], dtype=dtype)
        masked = scores + torch.tensor([0.0, FINITE], dtype=dtype)
        return float(masked.softmax(-1)[1])

    low, high = 0, int(-2 * FINITE)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if leaked(middle) > leak else (middle, high)
    return float(high)


@torch.no_grad()
def finite_mask(attn: MultiHeadAttention, x_BTC: Tensor) -> Comparison:
    """C adds -10000 to hidden scores; the rest of this project sets them to -inf."""
    steps = walk(attn, x_BTC, masked_by=FINITE)
    scores, past = steps["scores"].value, causal_mask(x_BTC.size(1), x_BTC.size(1))
    visible = scores.masked_fill(~past, -math.inf).amax(-1)
    hidden = scores.masked_fill(past, -math.inf).amax(-1)
    numbers: dict[str, float] = {}
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        name = str(dtype).removeprefix("torch.")
        numbers[f"{name}: score gap at which attention begins to leak"] = leak_gap(dtype, 0.0)
        numbers[f"{name}: score gap at which half of it leaks"] = leak_gap(dtype, 0.5 - 1e-6)
    row = torch.tensor([0.0, 4e4], dtype=torch.float16)
    masked = row.masked_fill(torch.tensor([False, True]), -math.inf)
    numbers |= {
        "-inf: what leaks at a gap of 40,000, in float16": float(masked.softmax(-1)[1]),
        "largest gap on this prompt": float((hidden - visible)[..., :-1].max()),
        "attention that leaks here": float(steps["weights A"].value.triu(1).sum()),
    }
    return Comparison(
        "C: a mask that adds -10000, and one that sets -inf",
        numbers,
        "-inf hides any score. -10000 fails where a hidden score is about 10000 above the visible; "
        "the leak begins where exp stops underflowing. Near 10000 types round to 0.001, 64, 8.",
    )


def relu_after_output(seen: LayerPass) -> Comparison:
    """C ends with a ReLU."""
    output = seen.output_BTC
    return Comparison(
        "C: with and without a ReLU after the output projection",
        {
            "fraction of the outputs that become zero": float((output < 0).float().mean()),
            "fraction of the output's length that is lost": change(F.relu(output), output),
        },
        "A layer that adds to a residual stream must be able to subtract; after a ReLU it can only "
        "add.",
    )


@torch.no_grad()
def two_polarities(attn: MultiHeadAttention, x_BTC: Tensor) -> Comparison:
    """D's trap: its prose marks hidden cells True, its code hides cells that are 0."""
    may_attend = causal_mask(x_BTC.size(1), x_BTC.size(1))
    right = classical(attn)(x_BTC, mask=may_attend)
    inverted = by_torch(attn, x_BTC, may_attend)
    same = by_torch(attn, x_BTC, ~may_attend)  # which it inverts once more
    return Comparison(
        "D: the two polarities of a mask; True may attend here, is hidden in nn.MultiheadAttention",
        {
            "the same mask given to both": change(same, right),
            "queries that may then attend to nothing": float(may_attend.all(-1).sum()),
            "the mask inverted for nn.MultiheadAttention": furthest(inverted, right),
        },
        "Read the other way round, a causal mask shows only later tokens, and the last position "
        "has nothing to look at.",
    )


def with_relu(model: GPT) -> GPT:
    """A copy of the model with a ReLU after the output projection of every attention layer."""
    twin = copy.deepcopy(model)
    for block in blocks_of(twin):
        block.attn.register_forward_hook(lambda module, args, output: F.relu(output))
    return twin


def description_c(attn: MultiHeadAttention, x_BTC: Tensor, masked: bool) -> dict[str, Step]:
    """The steps of attention as description C has it: scores not divided by sqrt(D), -10000 added
    above the diagonal when masked, ReLU after the output projection."""
    steps = walk(attn, x_BTC, causal=masked, scaled=False, masked_by=FINITE)
    return steps | {"ReLU": Step("max(output, 0)", "B,T,C", F.relu(steps["output"].value))}
