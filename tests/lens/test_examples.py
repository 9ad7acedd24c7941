"""Places at which a head matters, on a model whose answer is known and against plain loops."""

import base64
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from configs.config import ModelConfig
from data.tokenizer import train_bpe
from lens import examples as module
from lens import measure
from lens.capture import blocks_of, capture
from lens.examples import (
    AROUND,
    BEFORE,
    Places,
    best_distinct,
    examples_for_page,
    find_places,
    quoted,
)
from lens.heads import names_of
from lens.subject import MeasureOptions, Subject
from lens.tables import WIDEST
from model.gpt import GPT
from tests.conftest import make_run
from tests.lens.models import CLASSICAL, MODERN, D, make_model, some_tokens
from tests.lens.test_paths import make_known
from tests.lens.test_tasks import tables

TOKENS = some_tokens(5, 13)


def losses(logits_BTV: Tensor) -> Tensor:
    return F.cross_entropy(logits_BTV.mT, TOKENS[:, 1:], reduction="none")


@pytest.mark.parametrize("at_once", [1, 2**22])
@pytest.mark.parametrize(
    "config", [MODERN, CLASSICAL, replace(MODERN, norm="none", mlp_ratio=0)], ids=str
)
@torch.no_grad()
def test_places_are_those_of_plain_loops(
    config: ModelConfig, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last part of a model whose final norm divides by a number that is given."""
    monkeypatch.setattr(measure, "NUMBERS_AT_ONCE", at_once)
    model = make_model(config)
    seen = capture(model, TOKENS[:, :-1])
    x_BTC = seen.residual[-1]
    found = find_places(model, TOKENS, names_of(model).values())
    assert [*found] == [*names_of(model).values()]
    twin, sigma_BT1 = make_model(config), torch.ones(1)
    if isinstance(twin.final_norm, nn.LayerNorm):
        sigma_BT1 = x_BTC.std(-1, correction=0, keepdim=True)
        weight, bias = twin.final_norm.weight, twin.final_norm.bias
        twin.final_norm = nn.Identity()
    for (i, h), (changing, attending) in found.items():
        layer = seen.layers[i]
        of_head = slice(h * D, (h + 1) * D)
        left_BTC = x_BTC - layer.z_BHTD[:, h] @ blocks_of(model)[i].attn.out.weight[:, of_head].T
        if config.norm == "layer":
            left_BTC = (left_BTC - left_BTC.mean(-1, keepdim=True)) / sigma_BT1 * weight
            left_BTC = left_BTC if bias is None else left_BTC + bias
        change_BT = losses(twin.unembed(left_BTC)) - losses(seen.logits_BTV)
        for n in range(len(TOKENS)):
            A_TS = layer.weights_BHTS[n, h]
            query = max(range(12), key=lambda t: abs(float(change_BT[n, t])))
            assert [int(each[n]) for each in changing[1:3]] == [query, int(A_TS[query].argmax())]
            pairs = [(t, s) for t in range(12) for s in range(1, t)]
            query, key = max(pairs, key=lambda pair: float(A_TS[pair]))
            assert [int(each[n]) for each in attending[1:3]] == [query, key]
        for places in (changing, attending):
            weight_B, here_B = layer.weights_BHTS[:, h], torch.arange(len(TOKENS))
            weight_B = weight_B[here_B, places.query, places.key]
            assert torch.allclose(places.weight, weight_B, atol=1e-5)
            assert torch.allclose(places.change, change_BT[here_B, places.query], atol=1e-4)
        assert torch.equal(changing.value, changing.change.abs())
        assert torch.equal(attending.value, attending.weight)


def test_known_head_is_shown_where_its_source_and_query_are(workplace: Path) -> None:
    """L0H1 raises c if an a precedes b. Other queries attend to the first token, without effect."""
    lines = ["cadbced", "edabcda", "dedeede", "cecdede", "eacdbce"]
    Path("text.txt").write_text("".join(f"\n{line}" for line in lines * 20), newline="\n")
    idle = [("\n", query, "b", 9.0, 0.0) for query in "acde"]
    make_known([("a", "b", "c", 9.0, 5.0), *idle])
    changing, attending, of_idle, _ = tables("examples", "l0h1,L0H0", "a", "--source=text.txt")
    heading = ["answer", "weight", "loss change"]
    assert changing[0] == ["where L0H1 changes the loss most", *heading]
    assert attending[0] == ["where L0H1 attends most to an earlier token", *heading]
    assert of_idle[0][0].startswith("where L0H0") and {row[-1] for row in of_idle[1:]} == {0}
    texts, change = {"↵c«a»db", "↵ed«a»b", "↵e«a»cdb"}, math.log1p(5 / math.e**3)
    for rows in (changing[1:], attending[1:]):
        assert {row[0] for row in rows[:3]} == texts
        for _, answer, weight, found in rows[:3]:
            assert answer == "c" and weight > 0.99 and found == pytest.approx(change, rel=0.02)
        assert all(abs(row[3]) < 1e-2 for row in rows[3:])
    for _, *rows in tables("examples", "L0H1", "a", "--source=text.txt", "--without=L0H1"):
        assert {row[-1] for row in rows} == {0}


def test_same_context_with_another_answer_is_another_place() -> None:
    tokens = torch.arange(8).repeat(31, 1)
    tokens[0, 5] = 9
    query, values = torch.full((31,), 4), torch.ones(31)
    places = Places(values, query, query, values, values)
    assert len([*best_distinct(places, tokens, [*"abcdefghij"])]) == 2


@pytest.mark.parametrize("chars, size", [("\nabcde", 1), (None, 1), (300, 2)])
def test_page_has_the_examples_of_every_head_and_stays_small(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, chars: Any, size: int
) -> None:
    """tests/page/test_examples.py compares them with those that are printed."""
    text = "".join(np.random.default_rng(0).choice([*"\nabcde"], 30_000))
    Path("text.txt").write_text(text, newline="\n")
    tokenizer = train_bpe([text], 300) if size == 2 else None
    make_run(Path("runs/a"), chars if size == 1 else None, "text.txt", tokenizer=tokenizer)
    subject = Subject("a", MeasureOptions(source="text.txt"))
    heads = [*names_of(subject.model).values()]
    page = examples_for_page(subject, heads)
    assert page["bytes_per_token"] == size and len(json.dumps(page)) < 100_000
    packed = np.frombuffer(base64.b64decode(page["tokens"]), f"<u{size}")
    tokens_BT = torch.from_numpy(packed.reshape(-1, page["length"]).astype("int64"))
    whole = subject.batches.validation_tokens // 12
    assert torch.equal(tokens_BT, subject.sequences(len(tokens_BT))) and len(tokens_BT) == whole
    monkeypatch.setattr(module, "PAGE_PLACES", 2 * len(heads) * 3 + 1)
    monkeypatch.setattr(module, "PAGE_BYTES", size * 13 * 7 + 12)
    page = examples_for_page(subject, heads)
    assert len(base64.b64decode(page["tokens"])) == size * 13 * 7
    assert all(len(rows) == 3 for kinds in page["heads"] for rows in kinds)


def test_quoted_text_marks_the_attended_token() -> None:
    tokens = [*"the value of a name, which is bound to an object"]
    assert quoted(tokens[:9], 4) == "the «v»alue"
    end = "".join(tokens)[-BEFORE:]
    assert quoted(tokens, 4) == f"the «v»alue  … {end}" and AROUND == 5
    assert quoted(tokens, len(tokens) - BEFORE).startswith(f"«{end[0]}»{end[1:]}")
    long = ["-" * 64, *tokens, "=" * 64]
    assert all(len(quoted(long, key)) <= WIDEST for key in range(len(long)))


def test_another_final_norm_is_an_error() -> None:
    model: GPT = make_model()
    model.final_norm = nn.RMSNorm(MODERN.n_embd)
    with pytest.raises(Exception, match="computes another final norm"):
        find_places(model, TOKENS, [(0, 0)])
