"""Measurements of a model, against slow reference computations."""

import copy
import itertools
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from common.errors import UserError
from lens import measure
from lens.capture import blocks_of, capture
from lens.measure import (
    ablate,
    logit_lens,
    mean_loss,
    measure_copying,
    repeated,
    score_heads,
    spread,
)  # fmt: skip
from lens.metrics import SCORES
from model.gpt import GPT
from tests.lens.models import VOCAB, D, H, L, make_model, some_tokens

TEXT = some_tokens(5, 13)
REPEATS = repeated(VOCAB, 4, 6)


@pytest.fixture(params=[1, 13 * 13 * 2 * 3], ids=["one by one", "three at once"])
def model(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> GPT:
    """Return a model that is measured on one or three sequences at a time."""
    monkeypatch.setattr(measure, "NUMBERS_AT_ONCE", request.param)
    return make_model()


@torch.no_grad()
def losses(model: GPT, tokens_BT: Tensor) -> Tensor:
    log_p = model(tokens_BT[:, :-1]).log_softmax(-1)
    return F.nll_loss(log_p.mT, tokens_BT[:, 1:], reduction="none")


@given(st.integers(2, 9), st.integers(1, 5))
def test_repeated_gives_two_copies_of_distinct_tokens(period: int, count: int) -> None:
    strings = repeated(9, period, count)
    assert strings.shape == (count, 2 * period)
    assert torch.equal(strings[:, :period], strings[:, period:])
    assert all(len(set(row.tolist())) == period for row in strings)
    assert count == 1 or period < 4 or len({tuple(row) for row in strings.tolist()}) > 1


@given(st.integers(1, 40), st.integers(1, 40))
def test_spread_places_are_even_and_include_both_ends(count: int, total: int) -> None:
    places = spread(count, total)
    assert len(places) == min(count, total) and 0 <= places[0] <= places[-1] < total
    gaps = {b - a for a, b in itertools.pairwise(places)}
    assert not gaps or (places[0], places[-1]) == (0, total - 1)
    assert not gaps or 1 <= min(gaps) <= max(gaps) <= min(gaps) + 1


def test_head_scores_are_means_over_sequences(model: GPT) -> None:
    scores = score_heads(model, TEXT[:, :-1], False) | score_heads(model, REPEATS, True)
    assert list(scores) == [score.key for score in SCORES]
    for score in SCORES:
        expected = torch.zeros(L, H)
        read = REPEATS if score.repeats else TEXT[:, :-1]
        for tokens in read:
            for i, layer in enumerate(capture(model, tokens[None]).layers):
                expected[i] += score.measure(layer.weights_BHTS[0]) / len(read)
        assert torch.allclose(scores[score.key].float(), expected, atol=1e-5), score.key


def test_ablation_gives_the_loss_change_and_its_error(model: GPT) -> None:
    found, whole_B = ablate(model, TEXT), losses(model, TEXT).mean(1)
    assert found.keys() == {"zero", "zero_error", "mean", "mean_error"}
    for layer in range(L):
        for head in range(H):
            mean_D = capture(model, TEXT[:, :-1]).layers[layer].z_BHTD[:, head].mean((0, 1))
            for kind, value_D in (("zero", torch.zeros(D)), ("mean", mean_D)):
                twin, of_head = copy.deepcopy(model), slice(head * D, (head + 1) * D)
                out = blocks_of(twin)[layer].attn.out  # the head writes a constant
                out.bias = nn.Parameter(out.weight.data[:, of_head] @ value_D)
                out.weight.data[:, of_head] = 0.0
                change_B = losses(twin, TEXT).mean(1) - whole_B
                expected = {kind: change_B.mean(), f"{kind}_error": change_B.std() / 5**0.5}
                for key, number in expected.items():
                    assert float(found[key][layer, head]) == pytest.approx(float(number), abs=1e-5)
                    assert abs(float(number)) > 1e-3  # every head matters, so that errors show


def test_copying_losses_exclude_the_first_token(model: GPT) -> None:
    (first, second, scores), strings = measure_copying(model, 4), repeated(VOCAB, 4, 64)
    loss_BT = losses(model, strings)
    assert first == pytest.approx(float(loss_BT[:, :3].mean()), abs=1e-5)
    assert second == pytest.approx(float(loss_BT[:, 4:].mean()), abs=1e-5)
    assert torch.equal(scores["induction"], score_heads(model, strings, True)["induction"])


def test_logit_lens_gives_the_loss_at_every_depth(model: GPT) -> None:
    x, expected = model.embed(TEXT[:, :-1]), []
    for depth in range(L + 1):
        logits = model.unembed(x)
        expected.append(F.cross_entropy(logits.mT, TEXT[:, 1:]).item())
        x = blocks_of(model)[depth](x) if depth < L else x
    assert logit_lens(model, TEXT) == pytest.approx(expected, abs=1e-5)
    assert mean_loss(model, TEXT) == pytest.approx(expected[-1], abs=1e-5)


def test_non_finite_or_modified_logits_are_rejected(model: GPT) -> None:
    model.register_forward_hook(lambda module, args, logits: logits.tanh())
    with pytest.raises(UserError, match="unembed must return the same logits"):
        logit_lens(model, TEXT)
    blocks_of(model)[0].mlp.up.weight.data *= 1e38
    with pytest.raises(FloatingPointError, match="not finite"):
        capture(model, TEXT[:, 1:])


def test_ablation_needs_attention_that_ends_with_its_heads(model: GPT) -> None:
    """A layer that does more with its heads is rejected, and keeps its own forward pass."""
    attn: Any = blocks_of(model)[0].attn
    forward = attn.forward
    attn.forward = doubled = lambda *args, **options: 2 * forward(*args, **options)
    with pytest.raises(UserError, match="an attention layer W_O of its heads"):
        ablate(model, TEXT)
    assert attn.forward is doubled
