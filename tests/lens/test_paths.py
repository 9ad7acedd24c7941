"""The command paths, on a model whose skip-trigrams are known, and against plain loops."""

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import study
from configs.config import DataConfig
from data.batches import open_batches
from lens.paths import TokenTables
from model.gpt import GPT
from tests.conftest import make_run
from tests.lens.models import MODERN, D, H, make_model, some_tokens
from tests.lens.test_token import rotary_of
from training.checkpoint import load_checkpoint, open_run, save_checkpoint

ALONE: dict[str, Any] = {"n_layer": 1, "mlp_ratio": 0, "norm": "none", "qk_norm": False}
BARE = replace(MODERN, **ALONE)
CHARS = "\nabcde"
# For make_known; the order differs from that of the scores or of the logits.
TRIGRAMS = [("a", "b", "c", 6.0, 5.0), ("\n", "c", "b", 0.5, 12.0), ("d", "e", "a", 4.0, 3.0)]
T = BARE.block_size


def tables(*flags: str) -> Any:
    assert study.main(["paths", "a", "--source=text.txt", "--json=out.json", *flags]) == 0
    return json.loads(Path("out.json").read_text())


def write_text() -> None:
    Path("text.txt").write_text("abcde\nbadce\n" * 100, newline="\n")


@pytest.mark.parametrize(
    "choices",
    [{}, {"positions": "none", "tie_embeddings": True}, {"n_kv_head": 1, "window": 4}],
    ids=str,
)
@torch.no_grad()
def test_the_sum_of_the_paths_is_the_logits(choices: dict[str, Any]) -> None:
    model, tokens_T = make_model(replace(BARE, **choices)), some_tokens(T)
    assert torch.allclose(TokenTables(model).logits(tokens_T), model(tokens_T[None])[0], atol=1e-4)


@pytest.mark.parametrize("window", [0, 5, 2])
@torch.no_grad()
def test_highest_weights_are_those_of_a_plain_loop(window: int) -> None:
    """Over every distance, with one key that is the query, one the source, and others random. With
    a window of 2, there are no others."""
    paths = TokenTables(make_model(replace(BARE, window=window)))
    tokens_K, n = torch.tensor([7, 2, 4]), window or T
    frequency_V = torch.rand(paths.E_VC.size(0), generator=torch.Generator().manual_seed(1))
    frequency_V[3], frequency_V = 0, frequency_V / frequency_V.sum()
    weight_HKK, distance_HKK = paths.highest_weights(tokens_K, frequency_V)
    for h in range(H):
        for i, query in enumerate(tokens_K):
            q_nD = torch.stack([rotary_of(paths.q_HVD[h, query], d) for d in range(n)])
            exp_nV = (q_nD @ paths.k_HVD[h].T / math.sqrt(D)).exp()
            weights_nK = torch.zeros(n, 3)
            for distance in range(1, n):
                random = sum(exp_nV[d] @ frequency_V for d in range(1, n) if d != distance)
                of_K = exp_nV[distance, tokens_K]
                weights_nK[distance] = of_K / (of_K + exp_nV[0, query] + random)
            highest = weights_nK.max(0)
            assert torch.allclose(weight_HKK[h, i], highest.values, rtol=1e-4)
            assert torch.equal(distance_HKK[h, i], highest.indices)
    assert n == 2 or len({*distance_HKK.flatten().tolist()}) > 2


def test_without_earlier_positions_there_are_no_sources(workplace: Path) -> None:
    write_text()
    for choices in ({"window": 1}, {"block_size": 1}):
        make_run(Path("runs/a"), CHARS, **ALONE | choices)
        assert {*map(len, tables("--checkpoint=last")["tables"][2:])} == {1}
        shutil.rmtree("runs/a")


@torch.no_grad()
def make_known(trigrams: list[tuple[str, str, str, float, float]]) -> None:
    """Make a run whose direct path raises the next letter of the alphabet by 3, and whose L0H1
    knows skip-trigrams; L0H0 does nothing.

    Args:
        trigrams: source, query, raised token, score of the source, and what it adds to the logit.
    """
    choices = ALONE | {"positions": "none", "n_embd": 32, "n_head": 2, "block_size": 8}
    run, V = make_run(Path("runs/a"), CHARS, **choices), len(CHARS)
    for which in ("best", "last"):
        header, tensors = load_checkpoint(run / f"{which}.safetensors")
        for name, weight in tensors.items():
            if name.startswith("model."):
                weight.zero_()
        embedding, head = (tensors[f"model.{name}.weight"] for name in ("token_embedding", "head"))
        embedding[:, :V] = torch.eye(V)
        embedding[:, V : 2 * V] = 3 * torch.roll(torch.eye(V), 1, 1)
        head[:, V : 2 * V] = torch.eye(V)
        query, key, value, out = (
            tensors[f"model.blocks.0.attn.{name}.weight"]
            for name in ("query", "key", "value", "out")
        )
        for row, (source, asks, raised, score, logit) in enumerate(trigrams, start=16):
            query[row, CHARS.index(asks)], key[row, CHARS.index(source)] = 4 * score, 1.0
            value[row, CHARS.index(source)], out[V + CHARS.index(raised), row] = 1.0, logit
        save_checkpoint(run / f"{which}.safetensors", tensors, header)


def test_known_bigrams_and_skip_trigrams_are_printed(workplace: Path) -> None:
    write_text()
    make_known(TRIGRAMS)
    _, bigrams, idle, head = tables()["tables"]
    assert sorted(row[0] + row[1][0] for row in bigrams[1:]) == ["ab", "bc", "cd", "de", "e↵", "↵a"]
    assert [row[2] for row in bigrams[1:]] == [pytest.approx(3 * 5 / 6)] * 6
    assert head[0][0] == "L0H1: source" and [row[-1] for row in idle[1:]] == [0] * 6
    counts = {"a": 19, "\n": 20, "d": 20}  # of the 119 tokens that are predicted
    for (source, asks, raised, score, nats), row in zip(TRIGRAMS, head[1:4], strict=True):
        assert row[0] == source.replace("\n", "↵") and row[3] is None
        assert row[1].startswith(f"... {asks}") and row[2].startswith(f"-> {raised}")
        # The query's own key, and six random ones
        others = 1 + 6 * (counts[source] * math.exp(score) + 119 - counts[source]) / 119
        assert row[4] == pytest.approx(1 / (1 + others / math.exp(score)), rel=1e-4)
        assert row[5] == pytest.approx(nats * 5 / 6)
    assert [row[-1] for row in head[4:]] == [0] * 3
    assert len(tables("--rows=2")["tables"][3]) == 3


@torch.no_grad()
def test_losses_are_those_of_the_validation_split(workplace: Path) -> None:
    write_text()
    make_run(Path("runs/a"), CHARS, **ALONE)
    found = tables("--checkpoint=last")
    error = float(found["titles"][0].split("\n")[0].split()[-1])
    last = "(bigrams are counted in the training split) on 119 of 119 validation tokens of text.txt"
    assert 0 < error < 1e-5 and found["titles"][0].endswith(last)
    saved = open_run("a", "last")
    model, batches = saved.model(), open_batches(DataConfig("text.txt"), T, 0)
    losses = []
    for tokens_BT in batches.split("validation", 1):
        E_TC = model.token_embedding(tokens_BT[0, :-1])
        for logits in (E_TC @ model.get_parameter("head.weight").T, model(tokens_BT[:, :-1])[0]):
            losses.append(F.cross_entropy(logits, tokens_BT[0, 1:], reduction="none"))
    direct, whole = (torch.cat(losses[i::2]).mean().item() for i in (0, 1))
    assert [name for name, _ in found["tables"][0][1:]] == [
        "direct path alone",
        "direct path and heads",
        "counted bigrams",
    ]
    back = [row[3] for table in found["tables"][2:] for row in table[1:]]
    assert all(0 < each < T for each in back) and len({*back}) > 1
    expected = [direct, whole, batches.baselines["bigram"]]
    assert [nats for _, nats in found["tables"][0][1:]] == pytest.approx(expected, rel=1e-5)


def test_tables_that_do_not_give_the_logits_are_rejected(
    workplace: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a model whose output is changed."""
    write_text()
    make_run(Path("runs/a"), CHARS, **ALONE)
    unembed = GPT.unembed
    monkeypatch.setattr(GPT, "unembed", lambda self, x_BTC: unembed(self, x_BTC).tanh())
    assert study.main(["paths", "a", "--source=text.txt"]) == 2
    assert "error: the paths do not give the model's logits" in capsys.readouterr().err
