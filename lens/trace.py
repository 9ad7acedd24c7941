"""The verb trace: one attention layer of a run, step by step."""

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from common.errors import UserError
from common.fields import STRICT, Count, Natural
from common.tables import print_table, visible
from lens.capture import capture
from lens.checks import by_torch
from lens.subject import Subject, SubjectOptions
from lens.variants import change, description_c, furthest, one_wide_head
from lens.walk import Step, walk
from model.attention import MultiHeadAttention
from run.folder import RUNS

SHOWN = 8  # rows and columns of a printed matrix, at most


@dataclass(frozen=True, config=STRICT)
class Trace(SubjectOptions):
    """One attention layer, step by step"""

    layer: Natural = 0
    """Layer index, from 0."""

    head: Natural = 0
    """Index of the head whose scores and weights are printed, from 0."""

    at: Natural = 0
    """The first of the eight positions whose scores and weights are printed."""

    random: str | None = None
    """No run: random input of shape B,T,C."""

    n_head: Count = 8
    """Number of heads for --random."""


def trace(word: str | None, options: Trace) -> int:
    """Of a run; or descriptions A, B and C, where --random is given or there is no run yet."""
    if options.random is not None and word is not None:
        raise UserError("--random shows descriptions without a run; leave one of the two out")
    if options.random is not None:
        print_descriptions(options.random, options.n_head)
    elif word is None and not any(RUNS.glob("*/last.safetensors")):
        print("there is no run yet: here are descriptions A, B and C on inputs of their own\n")
        print_descriptions("4,10,512", options.n_head)
    else:
        trace_run(Subject(word, options), options)
    return 0


def trace_run(subject: Subject, options: Trace) -> None:
    """The steps of a layer, and three matrices of one of its heads."""
    config, prompt_T = subject.config.model, subject.prompt_T
    attn = subject.layer(options.layer)
    if options.head >= config.n_head:
        raise UserError(f"--head {options.head}: the heads are 0 to {config.n_head - 1}")
    seen = capture(subject.model, prompt_T[None]).layers[options.layer]
    steps = trace_layer(attn, seen.x_BTC, seen.output_BTC)
    B, T, C = seen.x_BTC.shape
    print(
        f"layer {options.layer} on {T} tokens: B = {B}, T = S = {T}, C = {C}, H = {config.n_head}, "
        f"D = C / H = {config.head_width}\n"
    )
    print_steps(steps)
    titles = {
        "scores": "scores before the mask",
        "masked": "after the mask (· is hidden: -inf, no number at all)",
        "weights A": "weights after the softmax; each row sums to 1",
    }
    tokens = [visible(subject.vocab[token]) for token in prompt_T.tolist()]
    if options.at >= len(tokens):
        raise UserError(f"--at {options.at}: the positions are 0 to {len(tokens) - 1}")
    for name, title in titles.items():
        print(f"\nhead {options.head}: {title}")
        hidden = steps[name].hidden
        print_matrix(
            steps[name].value[0, options.head],
            None if hidden is None else hidden[0, options.head],
            tokens,
            options.at,
        )


@torch.no_grad()
def trace_layer(attn: MultiHeadAttention, x_BTC: Tensor, output_BTC: Tensor) -> dict[str, Step]:
    """The steps of causal self-attention on what a layer read, by their names.

    Args:
        output_BTC: what the model made of the same `x`, where the steps must end too.

    Raises:
        FloatingPointError: when what the layer computed is not finite.
        RuntimeError: when the steps do not end where the model ended.
    """
    steps = walk(attn, x_BTC)
    if not output_BTC.isfinite().all():
        raise FloatingPointError("what this layer computes is not finite (NaN or Inf)")
    # The order of sums differs.
    atol = 1e-3 * float(output_BTC.abs().max())
    if not torch.allclose(steps["output"].value, output_BTC, rtol=1e-3, atol=atol):
        raise RuntimeError("the traced steps are not what the model computed")
    return steps


def print_steps(steps: dict[str, Step]) -> None:
    """A table of them."""
    rows = [["step", "formula", "shape", "here", "row sums", "masked", "min", "mean", "max"]]
    for name, step in steps.items():
        value, hidden, sums, masked = step.value.double(), step.hidden, "", ""
        if name == "weights A":
            sums = f"{value.sum(-1).min():.4f} to {value.sum(-1).max():.4f}"
        if hidden is not None:
            masked = f"{int(hidden.sum()):,} of {hidden.numel():,}"
            value = value[~hidden]
        statistics = [f"{number:.3f}" for number in (value.min(), value.mean(), value.max())]
        shape = str(tuple(step.value.shape))
        rows.append([name, step.formula, f"({step.letters})", shape, sums, masked, *statistics])
    print_table(rows, words=4)


def print_matrix(
    matrix_TS: Tensor, hidden: Tensor | None, tokens: list[str], first: int = 0
) -> None:
    """Some rows and columns of a matrix, queries down and keys across.

    Args:
        hidden: cells that are masked, printed as a dot: not zero, but not there.
    """
    shown = range(first, min(first + SHOWN, len(tokens)))
    names = {i: f"{i} {tokens[i]}" for i in shown}
    rows = [["query \\ key", *names.values()]]
    for q in shown:
        cells = [f"{matrix_TS[q, k]:.3f}" for k in shown]
        if hidden is not None:
            cells = ["·" if hidden[q, k] else cell for k, cell in zip(shown, cells, strict=True)]
        rows.append([names[q], *cells])
    print_table(rows)
    if len(tokens) > len(shown):
        print(f"(positions {shown[0]} to {shown[-1]} of {len(tokens)}; --at shows others)")


# --- A, B and C on their own inputs, without a run -----------------------------------------------


@torch.no_grad()
def print_descriptions(shape: str, n_head: int) -> None:
    """A: multi-head attention on a random input; B: one head, and many with W_O; C: from token ids,
    in its own manner.

    Raises:
        UserError: for a shape that is none, or cannot be split into heads.
    """
    try:
        B, T, C = (int(number) for number in shape.split(","))
        if min(B, T, C) < 1 or B * T * max(C, n_head * T) > 10**8:
            raise ValueError
    except ValueError:
        raise UserError(f"--random {shape} must be B,T,C, as 4,10,512, and not too large") from None
    if C % n_head:
        raise UserError(f"--random {shape}: C = {C} must be divisible by --n_head {n_head}")
    torch.manual_seed(0)
    attn, x_BTC = MultiHeadAttention(C, n_head), torch.randn(B, T, C)

    print(f"A: multi-head self-attention on ({B}, {T}, {C}), {n_head} heads\n")
    steps = walk(attn, x_BTC, causal=False)
    print_steps(steps)
    error = furthest(attn(x_BTC), by_torch(attn, x_BTC))
    print(f"\nthe output has the input's shape; against nn.MultiheadAttention: {error:.1e}\n")

    print("B: a single head without W_O, and heads concatenated with W_O\n")
    q, k, v = (steps[f"{name} by head"].value for name in "QKV")
    z_BTC, one_A = one_wide_head(attn, q, k, v, None)
    many_A, output_BTC = steps["weights A"].value, steps["output"].value
    rows = [["", "relations between positions", "shape of A", "output"]]
    for name, A, output in (
        ("one head", one_A, z_BTC),
        (f"{n_head} heads, W_O", many_A, output_BTC),
    ):
        rows.append([name, str(A.size(1)), str(tuple(A.shape)), str(tuple(output.shape))])
    print_table(rows, words=4)
    apart = change(steps["merged"].value, z_BTC)
    print(f"\nbefore W_O the heads differ from the one head by {apart:.2f} of its norm\n")

    print("C: from token ids, (5, 3) of a vocabulary of 10, C = 8, H = 2; no scale, ReLU\n")
    embedding, small = nn.Embedding(10, 8), MultiHeadAttention(8, 2)
    ids_BT = torch.randint(10, (5, 3))
    rows = [["masked", "ids", "embedded", "weights", "output", "A[0, 0], first row", "zeros"]]
    for masked in (False, True):
        steps = description_c(small, embedding(ids_BT), masked)
        A, output = steps["weights A"].value, steps["ReLU"].value
        tensors = [ids_BT, steps["input"].value, A, output]
        row = " ".join(f"{weight:.3f}" for weight in A[0, 0, 0].tolist())
        zeros = f"{float((output == 0).float().mean()):.0%}"
        rows.append([str(masked), *(str(tuple(t.shape)) for t in tensors), row, zeros])
    print_table(rows, words=6)
    print("\nmasked, the first position sees itself alone; the ReLU leaves nothing negative")
