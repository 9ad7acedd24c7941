"""The commands trace, one attention layer of a run step by step, and random, which needs no run."""

from collections.abc import Iterator
from typing import Any

import torch
from pydantic.dataclasses import dataclass
from torch import nn

from configs.config import STRICT, Natural
from lens.formula import FINITE, Step, layer_by_torch, layer_steps
from lens.subject import Checkpoint, Prompt, Source, Subject, check_index
from lens.tables import Table, visible
from model.attention import MultiHeadAttention
from model.error import largest_error

SHOWN = 8  # rows and columns of a printed matrix, at most


@dataclass(frozen=True, config=STRICT)
class Trace:
    """Print one layer step by step: formulas, shapes, numbers"""

    layer: Natural = 0
    """Layer index, from 0."""

    head: Natural = 0
    """Index of the head whose scores and weights are printed, from 0."""

    prompt: Prompt = None
    source: Source = None
    checkpoint: Checkpoint = "best"


@torch.no_grad()
def trace(word: str | None, options: Trace) -> Iterator[str | Table]:
    """Yield the steps of a layer, and the scores and the weights of one of its heads."""
    subject = Subject(word, options)
    layer = subject.layer(options.layer)
    check_index("head", options.head, subject.config.model.n_head)
    tokens = [visible(subject.tokenizer.labels[token]) for token in subject.prompt_T.tolist()]
    steps = layer_steps(layer.attn, layer.x_BTC)
    yield table_of_steps(steps)
    yield f"head {options.head}: scores before the mask"
    yield table_of_head(steps["scores"], options.head, tokens)
    yield f"head {options.head}: weights after the softmax; each row sums to 1 (· is hidden)"
    yield table_of_head(steps["weights A"], options.head, tokens)


def table_of_steps(steps: dict[str, Step]) -> Table:
    """Return a row for each step."""
    heading = ["step", "formula", "shape", "here", "row sums", "to", "masked", "min", "mean", "max"]
    rows: list[list[Any]] = [heading]
    for name, step in steps.items():
        value, masked = step.value.double(), ""
        sums: list[Any] = [None, None]
        if name == "weights A":
            sums = [number.item() for number in value.sum(-1).aminmax()]
        if step.hidden is not None:
            masked = f"{int(step.hidden.sum()):,} of {value.numel():,}"
            value = value[~step.hidden]
        statistics = [number.item() for number in (value.min(), value.mean(), value.max())]
        shape = str(tuple(step.value.shape))
        rows.append([name, step.formula, f"({step.letters})", shape, *sums, masked, *statistics])
    return Table(rows, words=4)


def table_of_head(step: Step, head: int, tokens: list[str]) -> Table:
    """Return the first rows and columns of a head's matrix, queries down and keys across; a masked
    cell is a dot."""
    hidden = torch.zeros_like(step.value) if step.hidden is None else step.hidden
    names = [f"{i} {token}" for i, token in enumerate(tokens[:SHOWN])]
    rows: list[list[Any]] = [["query \\ key", *names]]
    for q, name in enumerate(names):
        cells = zip(hidden[0, head, q, :SHOWN], step.value[0, head, q, :SHOWN], strict=True)
        rows.append([name, *("·" if masked else weight.item() for masked, weight in cells)])
    return Table(rows)


@dataclass(frozen=True, config=STRICT)
class Random:
    """Print the steps of two write-ups, with random weights and inputs instead of a run"""


@torch.no_grad()
def random(options: Random) -> Iterator[str | Table]:
    """Yield the first write-up's multi-head attention on a random input, and the third's, from
    token ids."""
    torch.manual_seed(0)
    attn, x_BTC = MultiHeadAttention(512, n_head=8), torch.randn(4, 10, 512)
    yield "multi-head self-attention on (4, 10, 512), 8 heads"
    yield table_of_steps(layer_steps(attn, x_BTC, causal=False))
    difference = largest_error(attn(x_BTC), layer_by_torch(attn, x_BTC))
    yield f"largest relative error against torch.nn.MultiheadAttention: {difference:.1e}"
    x_BTC, attn = nn.Embedding(10, 8)(torch.randint(10, (5, 3))), MultiHeadAttention(8, 2)
    for masked in (False, True):
        yield f"token ids, no scale, ReLU, masked: {masked}"
        steps = layer_steps(attn, x_BTC, causal=masked, scaled=False, masked_by=FINITE)
        steps["ReLU"] = Step("max(output, 0)", "B,T,C", steps["output"].value.relu())
        yield table_of_steps(steps)
