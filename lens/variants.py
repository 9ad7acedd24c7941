"""What each choice in attention does: variants composed from the model's primitives, set side by
side on the same weights and the same text. The model itself has no flag for any of them.

A to D are the descriptions of multi-head attention that README lists. Every comparison is numbers
and one sentence.
"""

import copy
import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from common.tables import print_table
from lens.capture import LayerPass, blocks_of
from lens.checks import head_by_head, multihead_twin, textbook, with_gradients
from lens.metrics import entropy
from model.attention import MultiHeadAttention, attention, causal_mask
from model.gpt import GPT

FINITE = -10_000.0  # what description C adds to a hidden score


@dataclass(frozen=True)
class Comparison:
    """Some numbers, and why they are what they are."""

    title: str
    numbers: list[tuple[str, float]]
    why: str


def furthest(a: Tensor, b: Tensor) -> float:
    """Largest difference, as a share of the largest number of the second."""
    scale = float(b.double().abs().max())
    return float((a.double() - b.double()).abs().max()) / (scale or 1.0)


def relative(a: Tensor, b: Tensor) -> float:
    """|a - b| / |b|, of all numbers together."""
    return float((a - b).norm() / b.norm().clamp(min=1e-30))


def classical(attn: MultiHeadAttention) -> MultiHeadAttention:
    """The layer with the same four matrices, without rotary positions and QK-norm."""
    bias = attn.out.bias is not None
    twin = MultiHeadAttention(attn.out.out_features, attn.n_head, bias=bias).to(attn.out.weight)
    twin.load_state_dict({k: v for k, v in attn.state_dict().items() if "norm" not in k})
    return twin.eval()


def compare_layer(
    attn: MultiHeadAttention, seen: LayerPass, source_BSC: Tensor
) -> list[Comparison]:
    """Descriptions A to D on one trained layer.

    Args:
        seen: what the layer did in a forward pass.
        source_BSC: what the same layer read in another text, of another length, for
            cross-attention.
    """
    return [
        with_torch(attn, seen.x_BTC),
        one_head_or_many(attn, seen),
        with_or_without_output(attn, seen),
        one_projection_a_head(attn, seen.x_BTC),
        plain_causal_cross(attn, seen.x_BTC, source_BSC),
        with_or_without_scale(seen),
        finite_mask(seen),
        relu_after_output(attn, seen),
        two_polarities(attn, seen.x_BTC),
    ]


def with_torch(attn: MultiHeadAttention, x_BTC: Tensor) -> Comparison:
    """A: three projections, heads, softmax(QK^T / sqrt(D)) V, output projection."""
    ours, theirs = classical(attn), multihead_twin(attn)
    numbers = []
    T = x_BTC.size(1)
    for name, hidden in (("plain", None), ("causal", ~causal_mask(T, T))):
        causal = hidden is not None

        def run_ours(x: Tensor, causal: bool = causal) -> Tensor:
            return ours(x, causal=causal)

        def run_theirs(x: Tensor, hidden: Tensor | None = hidden) -> Tensor:
            return theirs(x, x, x, attn_mask=hidden, need_weights=False)[0]

        a, (da, _) = with_gradients(run_ours, x_BTC, [ours.out.weight])
        b, (db, _) = with_gradients(run_theirs, x_BTC, [theirs.out_proj.weight])
        numbers += [(f"{name}: output", furthest(a, b)), (f"{name}: gradient", furthest(da, db))]
    return Comparison(
        "A: this module against torch.nn.MultiheadAttention with the same four matrices",
        numbers,
        "Two programs of one formula differ by rounding. (Both without rotary positions and "
        "QK-norm, which PyTorch's module does not have.)",
    )


def one_head_or_many(attn: MultiHeadAttention, seen: LayerPass) -> Comparison:
    """B: a single relation between positions, against several."""
    q, k, v = (attn.merge_heads(t)[:, None] for t in (seen.q_BHTD, seen.k_BHSD, seen.v_BHSD))
    one_z, one_A = attention(q, k, v, seen.mask)
    H, many_A = attn.n_head, seen.weights_BHTS
    spread = entropy(many_A).mean(0)
    apart = [
        float((many_A[:, i] - many_A[:, j]).abs().sum(-1).mean()) / 2
        for i in range(H)
        for j in range(i)
    ]
    numbers = [
        ("entropy of one head as wide as the layer (1 is uniform)", float(entropy(one_A).mean())),
        (f"entropy of the {H} heads, least", float(spread.min())),
        (f"entropy of the {H} heads, most", float(spread.max())),
        ("change of the heads' outputs", relative(one_z[:, 0], attn.merge_heads(seen.z_BHTD))),
    ]
    if apart:
        numbers.append(
            ("attention that two heads place differently, mean", sum(apart) / len(apart))
        )
    return Comparison(
        f"B: one head against {H}, on the same queries and keys",
        numbers,
        "One softmax over the sum of all heads' scores places the attention once; several place it "
        "several times, each in its own way, for the same number of products.",
    )


def with_or_without_output(attn: MultiHeadAttention, seen: LayerPass) -> Comparison:
    """B: concatenated heads, and those times W_O."""
    merged, D = attn.merge_heads(seen.z_BHTD), seen.z_BHTD.size(-1)
    weight = attn.out.weight.detach()
    mixed = sum(
        float(weight[i * D : (i + 1) * D, j * D : (j + 1) * D].square().sum())
        for i in range(attn.n_head)
        for j in range(attn.n_head)
        if i != j
    )
    return Comparison(
        "B: with and without the output projection W_O",
        [
            ("change of the layer's output without it", relative(merged, seen.output_BTC)),
            (
                "share of W_O that carries one head's channels into another's",
                mixed / (float(weight.square().sum()) or 1.0),
            ),
        ],
        "Without W_O each head writes to its own D channels of the stream only; with it, to any.",
    )


def one_projection_a_head(attn: MultiHeadAttention, x_BTC: Tensor) -> Comparison:
    """D's open question: the paper has W_q, W_k, W_v for each head, the code one of each, split."""
    weights = [attn.query.weight, attn.key.weight, attn.value.weight, attn.out.weight]
    shared, shared_gradients = with_gradients(lambda x: textbook(attn, x), x_BTC, weights)
    split, split_gradients = with_gradients(lambda x: head_by_head(attn, x), x_BTC, weights)
    gradient = max(furthest(a, b) for a, b in zip(shared_gradients, split_gradients, strict=True))
    interleaved = copy.deepcopy(attn)
    C, H = attn.out.out_features, attn.n_head
    order = torch.arange(C).view(C // H, H).T.reshape(-1)  # head h takes rows h, h + H, h + 2H ...
    with torch.no_grad():
        for layer in (interleaved.query, interleaved.key, interleaved.value):
            layer.weight.copy_(layer.weight[order])
            if layer.bias is not None:
                layer.bias.copy_(layer.bias[order])
        other = head_by_head(interleaved, x_BTC)
    return Comparison(
        "D's question: one projection split into heads, or W_q, W_k, W_v for each head?",
        [
            ("output, head h owning rows h*D to (h+1)*D", furthest(split, shared)),
            ("gradients of x, W_q, W_k, W_v, W_O", gradient),
            ("output, head h owning every H-th row instead", furthest(other, shared)),
        ],
        "They are the same map: stacking the heads' matrices gives the shared one, rows h*D to "
        "(h+1)*D being head h; in another order the rows are other heads.",
    )


def plain_causal_cross(attn: MultiHeadAttention, x_BTC: Tensor, source_BSC: Tensor) -> Comparison:
    """D: one module, called in three ways."""
    layer, T = classical(attn), x_BTC.size(1)
    with torch.no_grad():
        plain, causal = layer(x_BTC), layer(x_BTC, causal=True)
        itself, cross = layer(x_BTC, x_BTC), layer(x_BTC, source_BSC)
        q, k = (layer.split_heads(p(x_BTC)) for p in (layer.query, layer.key))
        A = attention(q, k, k)[1]
    future = float(A.triu(1).sum() / A.sum())
    return Comparison(
        "D: plain, causal and cross-attention with the same matrices (no rotary, no QK-norm)",
        [
            ("attention that goes to the future without a mask, share", future),
            ("causal against plain, at the first position", relative(causal[:, 0], plain[:, 0])),
            ("causal against plain, at the last position", relative(causal[:, -1], plain[:, -1])),
            ("cross with the text itself as source against plain", furthest(itself, plain)),
            (
                f"cross with {source_BSC.size(1)} positions of another text against plain",
                relative(cross, plain),
            ),
            (f"rows of the cross output, for {T} queries", float(cross.size(1))),
        ],
        "The last position may see everything either way; cross-attention has as many outputs as "
        "queries, however long the source.",
    )


def with_or_without_scale(seen: LayerPass) -> Comparison:
    """C does not divide by sqrt(D)."""
    numbers: list[tuple[str, float]] = []
    D = seen.q_BHTD.size(-1)
    for name, factor in (("with 1/sqrt(D)", 1.0), ("without", math.sqrt(D))):
        products = seen.q_BHTD @ seen.k_BHSD.transpose(-2, -1) / math.sqrt(D)
        scores = (factor * products).detach().requires_grad_()
        visible = scores if seen.mask is None else scores.masked_fill(~seen.mask, -math.inf)
        A = visible.softmax(-1)
        z = A @ seen.v_BHSD
        generator = torch.Generator().manual_seed(0)
        loss = (z * torch.randn(z.shape, generator=generator)).sum()
        (gradient,) = torch.autograd.grad(loss, scores)
        numbers += [
            (f"{name}: entropy (1 is uniform)", float(entropy(A.detach()).mean())),
            (f"{name}: largest weight of a row, mean", float(A.detach().amax(-1).mean())),
            (f"{name}: gradient at the scores, of a random loss", float(gradient.norm())),
        ]
    return Comparison(
        "C: with and without the scale 1/sqrt(D)",
        numbers,
        f"Scores {math.sqrt(D):.1f} times as large push each row towards one key; the more certain "
        "a softmax is, the less gradient it passes back to its scores.",
    )


def leak_gap(dtype: torch.dtype, share: float, finite: float = FINITE) -> float:
    """By how much a hidden score must exceed the visible one for a mask that adds `finite` to let
    more than `share` of the attention through, in this type; found by bisection over whole numbers.
    """

    def leaked(gap: int) -> float:
        scores = torch.tensor([0.0, float(gap)], dtype=dtype)
        masked = scores + torch.tensor([0.0, finite], dtype=dtype)
        return float(masked.softmax(-1)[1])

    low, high = 0, int(-2 * finite)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if leaked(middle) > share else (middle, high)
    return float(high)


def finite_mask(seen: LayerPass) -> Comparison:
    """C adds -10000 to hidden scores; the rest of this project sets them to -inf."""
    scores = seen.q_BHTD @ seen.k_BHSD.transpose(-2, -1) / math.sqrt(seen.q_BHTD.size(-1))
    past = causal_mask(scores.size(-2), scores.size(-1))
    visible = scores.masked_fill(~past, -math.inf).amax(-1)
    hidden = scores.masked_fill(past, -math.inf).amax(-1)
    numbers = []
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        name = str(dtype).removeprefix("torch.")
        numbers += [
            (f"{name}: score gap at which the first of it leaks", leak_gap(dtype, 0.0)),
            (f"{name}: score gap at which half of it leaks", leak_gap(dtype, 0.5 - 1e-6)),
        ]
    hidden_by_inf = torch.tensor([0.0, 4e4], dtype=torch.float16).masked_fill_(
        torch.tensor([False, True]), -math.inf
    )
    leaked = float(hidden_by_inf.softmax(-1)[1])
    numbers.append(("-inf: what leaks at a gap of 40,000, in float16", leaked))
    numbers.append(("largest gap on this prompt", float((hidden - visible)[..., :-1].max())))
    finite = (scores + FINITE * ~past).softmax(-1)
    numbers.append(("attention that leaks here", float(finite.triu(1).sum())))
    return Comparison(
        "C: a mask that adds -10000, and one that sets -inf",
        numbers,
        "-inf hides any score. -10000 hides those that are not about as much above the visible: "
        "the leak begins where exp stops underflowing, and near 10000 types round to 0.001, 64, 8.",
    )


def relu_after_output(attn: MultiHeadAttention, seen: LayerPass) -> Comparison:
    """C ends with a ReLU."""
    output = seen.output_BTC
    return Comparison(
        "C: with and without a ReLU after the output projection",
        [
            ("outputs that become zero, share", float((output < 0).float().mean())),
            ("length of the output that is lost, share", relative(F.relu(output), output)),
        ],
        "A layer that adds to a stream must be able to subtract; after a ReLU it can only add.",
    )


def two_polarities(attn: MultiHeadAttention, x_BTC: Tensor) -> Comparison:
    """D's trap: its prose marks hidden cells True, its code hides cells that are 0."""
    ours, theirs, T = classical(attn), multihead_twin(attn), x_BTC.size(1)
    may_attend = causal_mask(T, T)
    with torch.no_grad():
        right = ours(x_BTC, mask=may_attend)
        same = theirs(x_BTC, x_BTC, x_BTC, attn_mask=may_attend, need_weights=False)[0]
        inverted = theirs(x_BTC, x_BTC, x_BTC, attn_mask=~may_attend, need_weights=False)[0]
    return Comparison(
        "D: the two polarities of a mask; True may attend here, is hidden in nn.MultiheadAttention",
        [
            ("the same mask given to both", relative(same, right)),
            ("queries that may then attend to nothing", float(may_attend.all(-1).sum())),
            ("the mask inverted for nn.MultiheadAttention", furthest(inverted, right)),
        ],
        "Read the other way round, a causal mask shows only the future, and the last position has "
        "nothing to look at.",
    )


def with_relu(model: GPT) -> GPT:
    """A copy of the model with a ReLU after the output projection of every attention layer."""
    twin = copy.deepcopy(model)
    for block in blocks_of(twin):
        block.attn.register_forward_hook(lambda module, args, output: F.relu(output))
    return twin


# --- A, B and C on their own inputs, without a run -----------------------------------------------


@dataclass(frozen=True)
class DescriptionC:
    """Multi-head attention as description C has it: scores not divided by sqrt(D), -10000 added
    above the diagonal when masked, ReLU after the output projection."""

    attn: MultiHeadAttention
    masked: bool

    def __call__(self, x_BTC: Tensor) -> tuple[Tensor, Tensor]:
        """The output (B, T, C) and the weights (B, H, T, T)."""
        attn = self.attn
        q, k, v = (attn.split_heads(p(x_BTC)) for p in (attn.query, attn.key, attn.value))
        scores = q @ k.transpose(-2, -1)
        if self.masked:
            T = x_BTC.size(1)
            scores = scores + FINITE * ~causal_mask(T, T)
        weights = scores.softmax(-1)
        return F.relu(attn.out(attn.merge_heads(weights @ v))), weights


def print_descriptions(B: int, T: int, C: int, n_head: int) -> None:
    """A: multi-head attention on a random input; B: one head, and many with W_O; C: from token ids,
    in its own manner."""
    torch.manual_seed(0)
    attn = MultiHeadAttention(C, n_head)
    x_BTC = torch.randn(B, T, C)
    with torch.no_grad():
        print(f"A: multi-head self-attention on ({B}, {T}, {C}), {n_head} heads\n")
        q, k, v = (attn.split_heads(p(x_BTC)) for p in (attn.query, attn.key, attn.value))
        z_BHTD, weights = attention(q, k, v)
        rows = [["step", "formula", "shape", ""]]
        rows += [
            ["input", "x", "(B,T,C)", str(tuple(x_BTC.shape))],
            ["Q, K, V by heads", "x W + b, split", "(B,H,T,D)", str(tuple(q.shape))],
            ["weights A", "softmax(Q K^T / sqrt(D))", "(B,H,T,S)", str(tuple(weights.shape))],
            ["heads z", "A V", "(B,H,T,D)", str(tuple(z_BHTD.shape))],
            ["output", "merged W_O + b_O", "(B,T,C)", str(tuple(attn(x_BTC).shape))],
        ]
        print_table(rows, words=4)
        twin = multihead_twin(attn)
        apart = furthest(attn(x_BTC), twin(x_BTC, x_BTC, x_BTC, need_weights=False)[0])
        print(f"\nthe output has the input's shape; against nn.MultiheadAttention: {apart:.1e}\n")

        print("B: a single head without W_O, and heads concatenated with W_O\n")
        one_q, one_k, one_v = (attn.merge_heads(t)[:, None] for t in (q, k, v))
        one_z, one_A = attention(one_q, one_k, one_v)
        rows = [["", "relations between positions", "shape of A", "output"]]
        rows += [
            ["one head", "1", str(tuple(one_A.shape)), str(tuple(one_z[:, 0].shape))],
            [
                f"{n_head} heads, W_O",
                str(n_head),
                str(tuple(weights.shape)),
                str(tuple(attn(x_BTC).shape)),
            ],
        ]
        print_table(rows, words=4)
        apart = relative(attn.merge_heads(z_BHTD), one_z[:, 0])
        print(f"\nbefore W_O the heads differ from the one head by {apart:.2f} of its length\n")

        print("C: from token ids, (5, 3) of a vocabulary of 10, C = 8, H = 2; no scale, ReLU\n")
        embedding, small = nn.Embedding(10, 8), MultiHeadAttention(8, 2)
        ids_BT = torch.randint(10, (5, 3))
        x_BTC = embedding(ids_BT)
        rows = [["masked", "ids", "embedded", "weights", "output", "A[0, 0], first row", "zeros"]]
        for masked in (False, True):
            output, weights = DescriptionC(small, masked)(x_BTC)
            rows.append(
                [
                    str(masked),
                    str(tuple(ids_BT.shape)),
                    str(tuple(x_BTC.shape)),
                    str(tuple(weights.shape)),
                    str(tuple(output.shape)),
                    " ".join(f"{w:.3f}" for w in weights[0, 0, 0].tolist()),
                    f"{float((output == 0).float().mean()):.0%}",
                ]
            )
        print_table(rows, words=6)
        print("\nmasked, the first position sees itself alone; the ReLU leaves nothing negative")
