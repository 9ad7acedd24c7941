"""The command examples: the places of the validation split at which a head changes the loss most,
and those at which it attends most to one token.

The loss change is the direct effect: what the head writes is subtracted from the residual stream
before the final norm, whose scale stays that of the whole pass. So it leaves out what later layers
read from the head, and one pass is enough for all heads.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from common.errors import UserError
from common.progress import progress
from configs.config import STRICT
from lens.capture import capture
from lens.composition import Head
from lens.heads import ablated, find_heads
from lens.measure import losses_of, micro_batches
from lens.subject import ENOUGH, AtLeastTwo, Checkpoint, Source, Subject, Without
from lens.tables import Table, visible
from model.attention import attention_weights
from model.error import largest_error
from model.gpt import GPT
from page.html import in_base64

EXAMPLES = 12  # places of a head
MOST = 4096  # sequences
SAME = 3  # last characters before the answer that, with it, differ between any two places
BEFORE = 26  # characters up to the query that are printed
AROUND = 5  # characters before the attended token, and after it, if it is further back
LONGEST = 9  # characters of a token
PAGE_BYTES = 48_000  # of tokens, in base64 64 kB
PAGE_PLACES = 1000  # of all heads together, about 25 bytes each


@dataclass(frozen=True, config=STRICT)
class Examples:
    """Print the places at which heads, such as L1H2,L0H0, change the loss most, and attend most"""

    without: Without = None
    source: Source = None
    checkpoint: Checkpoint = "best"

    sequences: AtLeastTwo = MOST
    """Maximum number of validation sequences; a large model is measured on fewer."""


def examples(names: str, word: str | None, options: Examples) -> Iterator[str | Table]:
    """Yield two tables for each head."""
    subject = Subject(word, options)
    heads = find_heads(subject.model, names)
    tokens_BT = some_sequences(subject, heads, options.sequences)
    yield (
        f"on {subject.describe(tokens_BT)}\n"
        "«»: attended most; loss change: without the direct path of the head to the logits"
    )
    labels = [visible(label) for label in subject.tokenizer.labels]
    with ablated(subject.model, options.without):
        found = find_places(subject.model, tokens_BT, heads.values())
    for name, head in heads.items():
        kinds = "changes the loss most", "attends most to an earlier token"
        for kind, places in zip(kinds, found[head], strict=True):
            rows: list[list[Any]] = [[f"where {name} {kind}", "answer", "weight", "loss change"]]
            for n in best_distinct(places, tokens_BT, labels):
                *read, answer = (labels[i] for i in tokens_BT[n, : int(places.query[n]) + 2])
                numbers = places.weight[n].item(), places.change[n].item()
                rows.append([quoted(read, int(places.key[n])), answer, *numbers])
            yield Table(rows, words=0)


class Places(NamedTuple):
    """The best place of a head in each sequence, (N,) each."""

    value: Tensor
    """How good it is."""

    query: Tensor
    key: Tensor
    weight: Tensor

    change: Tensor
    """Of the loss of the token after the query, if the head writes nothing."""


@torch.no_grad()
def find_places(
    model: GPT, tokens_BT: Tensor, heads: Iterable[Head]
) -> dict[Head, tuple[Places, Places]]:
    """Return for each head the places at which it changes the loss most, with the key that it
    attends to most there, and the places at which it attends most to one earlier key. The first key
    of a sequence does not count, because heads attend to it if nothing fits.

    Args:
        tokens_BT: sequences of up to block_size + 1 tokens.

    Raises:
        UserError: for a final norm other than LayerNorm.
    """
    found: dict[Head, tuple[list[Places], list[Places]]] = {head: ([], []) for head in heads}
    U_VC = (model.head or model.token_embedding).weight
    for batch in progress(micro_batches(model, tokens_BT), "reading the validation split"):
        seen, answers_BT = capture(model, batch[:, :-1]), batch[:, 1:]
        losses_BT = losses_of(seen.logits_BTV, answers_BT)
        norm = with_frozen_scale(model.final_norm, seen.residual[-1])
        for (i, h), (changing, attending) in found.items():
            layer = seen.layers[i]
            W_HDC = layer.attn.out.weight.T.unflatten(0, (layer.attn.n_head, -1))
            without_BTV = seen.logits_BTV - norm(layer.z_BHTD[:, h] @ W_HDC[h]) @ U_VC.T
            change_BT = losses_of(without_BTV, answers_BT) - losses_BT
            A_BTS = attention_weights(layer.q_BHTD[:, h], layer.k_BHSD[:, h], layer.mask)
            changing.append(best_places(change_BT.abs(), A_BTS, change_BT))
            A_BTS[..., 0] = 0.0
            A_BTS.diagonal(dim1=1, dim2=2).zero_()
            attending.append(best_places(A_BTS.amax(-1), A_BTS, change_BT))
    return {
        head: (joined(changing), joined(attending)) for head, (changing, attending) in found.items()
    }


def with_frozen_scale(norm: nn.Module, x_BTC: Tensor) -> Callable[[Tensor], Tensor]:
    """Return what a norm adds for a part of x, if its scale stays that of the whole.

    Raises:
        UserError: for a norm other than LayerNorm.
    """
    if isinstance(norm, nn.Identity):
        return norm
    scale_BT1 = (x_BTC.var(-1, correction=0, keepdim=True) + 1e-5).rsqrt()
    weight_C, bias_C = norm.get_parameter("weight"), getattr(norm, "bias", None)

    def part(o_BTC: Tensor) -> Tensor:
        return (o_BTC - o_BTC.mean(-1, keepdim=True)) * scale_BT1 * weight_C

    whole_BTC = part(x_BTC) if bias_C is None else part(x_BTC) + bias_C
    if largest_error(whole_BTC, norm(x_BTC)) > 1e-3:
        raise UserError("lens/examples.py computes another final norm; update it")
    return part


def best_places(value_BT: Tensor, A_BTS: Tensor, change_BT: Tensor) -> Places:
    """Return the place with the highest value of each sequence."""
    at = torch.arange(len(value_BT)), value_BT.argmax(1)
    weight_B, key_B = A_BTS[at].max(-1)
    return Places(value_BT[at], at[1], key_B, weight_B, change_BT[at])


def joined(parts: list[Places]) -> Places:
    return Places(*(torch.cat(each) for each in zip(*parts, strict=True)))


def best_distinct(
    places: Places, tokens_BT: Tensor, labels: list[str], count: int = EXAMPLES
) -> Iterator[int]:
    """Yield the sequences of the `count` best places in distinct contexts."""
    ends = set[tuple[str, int]]()
    for n in places.value.argsort(descending=True).tolist():
        query = int(places.query[n])
        *before, answer = tokens_BT[n, max(0, query + 1 - SAME) : query + 2].tolist()
        end = "".join(labels[token] for token in before)[-SAME:], answer
        if end not in ends and len(ends) < count:
            ends.add(end)
            yield n


def some_sequences(subject: Subject, heads: Collection[Any], count: int) -> Tensor:
    """Choose `count` sequences, or as many as there are and `ENOUGH` allows."""
    of_heads = len(heads) * subject.V * subject.config.model.n_embd  # unembedding each
    flops = 2 * subject.window * (subject.model.num_parameters() + of_heads)
    return subject.sequences(max(2, min(count, int(ENOUGH / flops))))


def examples_for_page(subject: Subject, heads: Collection[Head]) -> dict[str, Any]:
    """Return the examples of heads as plain data of at most 100 kB: the sequences in words, their
    tokens, and the places of both kinds of each head, as sequence, query, key, weight and loss
    change."""
    size, length = np.min_scalar_type(subject.V - 1).itemsize, subject.window + 1
    tokens_BT = some_sequences(subject, heads, PAGE_BYTES // (size * length))
    count = max(1, min(EXAMPLES, PAGE_PLACES // (2 * len(heads))))

    def rows(places: Places) -> list[list[float]]:
        best = best_distinct(places, tokens_BT, subject.tokenizer.labels, count)
        return [[n, *(round(each[n].item(), 3) for each in places[1:])] for n in best]

    return {
        "measured": subject.counted(len(tokens_BT)),
        "tokens": in_base64(tokens_BT.numpy().astype(f"<u{size}").tobytes()),
        "bytes_per_token": size,
        "length": length,
        "heads": [
            [*map(rows, both)] for both in find_places(subject.model, tokens_BT, heads).values()
        ],
    }


def quoted(tokens: list[str], key: int) -> str:
    """Return the end of a text with the attended token in « », after the text around this token if
    it is further back."""
    tokens = [token if len(token) <= LONGEST else f"{token[: LONGEST - 1]}…" for token in tokens]
    start = len(tokens) - 1
    while start > 0 and len("".join(tokens[start - 1 :])) <= BEFORE:
        start -= 1
    marked = [f"«{token}»" if i == key else token for i, token in enumerate(tokens)]
    end = "".join(marked[start:])
    if key >= start:
        return end
    before, after = "".join(tokens[:key])[-AROUND:], "".join(tokens[key + 1 : start])[:AROUND]
    return f"{before}{marked[key]}{after} … {end}"
