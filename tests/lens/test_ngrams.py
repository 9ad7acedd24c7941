"""The numbers of `study.py ngrams`, against slow reference computations."""

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import study
from configs.config import DataConfig
from data.batches import Batches, open_batches
from lens.capture import head_replaced
from lens.ngram_model import mixed_losses, ngrams_of
from model.gpt import GPT
from tests.conftest import make_run
from training.checkpoint import open_run

L, H, D, T, B = 2, 2, 8, 80, 3
random = np.random.default_rng(0)
LETTERS = np.tile([*"the value of the object "], 400)
NOISE = random.choice([*"\n abcdefghijklmnopqrstuvwxyz"], len(LETTERS))
TEXT = "".join(np.where(random.random(len(LETTERS)) < 0.4, NOISE, LETTERS))  # hard for both


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return the model, the counts of its text, B validation sequences, the numbers of their first
    tokens in the split, and the tables."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("ngrams"))
        Path("text.txt").write_text(TEXT)
        saved = open_run(make_run(Path("runs/a"), n_layer=L, n_embd=H * D, block_size=T), "last")
        flags = ["--source=text.txt", f"--sequences={B}", "--checkpoint=last", "--json=out.json"]
        assert study.main(["ngrams", "runs/a", *flags]) == 0
        batches = open_batches(DataConfig(source="text.txt"), T, 0, saved.tokenizer)
        starts = T * np.linspace(0, batches.validation_tokens // T - 1, B).round().astype(int)
        tokens = torch.tensor(batches.tokens["validation"].astype(int)).unfold(0, T + 1, 1)[starts]
        tables = json.loads(Path("out.json").read_text())["tables"]
        return saved.model(), batches, tokens, starts, tables


@torch.no_grad()
def losses(model: GPT, tokens_BT: torch.Tensor) -> Any:
    log_p = model(tokens_BT[:, :-1]).log_softmax(-1)
    return F.nll_loss(log_p.mT, tokens_BT[:, 1:], reduction="none").double().numpy()


def counted(batches: Batches, starts: Any) -> Any:
    """Return the surprisals and context lengths, (B, T) each, one token at a time: count in the
    whole split up to it."""
    places = (starts[:, None] + 1 + np.arange(T)).ravel()
    read = [ngrams_of(batches).read(batches.tokens["validation"][: place + 1]) for place in places]
    return (np.array([part[i][-1] for part in read]).reshape(B, T) for i in (0, 1))


def test_tables_by_context_and_of_places(found: Any) -> None:
    model, batches, tokens, starts, (by_length, *by_place, _) = found
    nats, (count, lengths) = losses(model, tokens), counted(batches, starts)
    rows = {row[0]: row[1:] for row in by_length[1:]}
    assert {*rows} == {*lengths.ravel().tolist(), "all"} == {1, 2, 3, "all"}
    for name, row in rows.items():
        part = lengths == name if name != "all" else lengths > -1
        one, other = nats[part].mean(), count[part].mean()
        assert row == pytest.approx([part.mean(), one, other, one - other], abs=1e-5)
    for sign, table in zip((1, -1), by_place, strict=True):
        differences = [row[-1] for row in table[1:]]
        assert differences == sorted(differences, key=lambda x: sign * x)
        assert differences[0] == pytest.approx(sign * (sign * (nats - count)).min(), abs=1e-5)
        assert len(differences) > 2 and max(sign * x for x in differences) < 0
        assert len({(row[0][-3:], row[1]) for row in table[1:]}) == len(differences)
        places = []
        for text, token, one, other, difference in table[1:]:
            (place,) = np.flatnonzero(np.isclose((nats - count).ravel(), difference, atol=1e-6))
            assert [one, other] == pytest.approx([x.flat[place] for x in (nats, count)], abs=1e-5)
            b, t = divmod(place, T)
            read = batches.tokenizer.decode(tokens[b, : t + 2].tolist())
            assert read.replace(" ", "␣").replace("\n", "↵").endswith(text + token)
            places.append(place)
        assert np.diff(sorted(places)).min() >= 32


def test_what_is_lost_without_a_head(found: Any) -> None:
    model, batches, tokens, starts, (*_, table) = found
    nats, (count, _) = losses(model, tokens), counted(batches, starts)
    rows = {row[0]: row[1:] for row in table[1:]}
    assert [*rows] == sorted(rows, key=lambda name: -rows[name][1][0])
    for layer, head in itertools.product(range(L), range(H)):
        with head_replaced(model, layer, head, 0.0):
            ablated, (alone, both, left, *parts) = losses(model, tokens), rows[f"L{layer}H{head}"]
        mixed = [mixed_losses(x.ravel(), count.ravel()).reshape(B, T) for x in (ablated, nats)]
        for found_pair, change in ((alone, ablated - nats), (both, mixed[0] - mixed[1])):
            expected = [change.mean(), change.mean(1).std(ddof=1) / B**0.5]
            assert found_pair == pytest.approx(expected, abs=1e-6)
        assert (left is None) == (alone[0] <= 2 * alone[1])
        assert left is None or left == pytest.approx(100 * both[0] / alone[0])
        for found_part, better in zip(parts, (nats < count, nats >= count), strict=True):
            gap = abs((count - nats)[better].sum())
            expected_part = 100 * (ablated - nats)[better].sum() / gap
            assert found_part == pytest.approx(expected_part, rel=1e-3) and abs(found_part) > 0.1
