"""Measurements of heads, held against the same computed the long way, and against a model built by
hand whose answer is known."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lens import heads
from lens.capture import blocks_of, capture, head_replaced
from lens.metrics import SCORES
from tests.lens.models import VOCAB, make_model


def windows(count: int = 5, length: int = 13) -> torch.Tensor:
    return torch.randint(VOCAB, (count, length), generator=torch.Generator().manual_seed(3))


@given(st.integers(2, 9), st.integers(1, 5), st.integers(0, 9))
def test_repeated_strings(period: int, count: int, seed: int) -> None:
    strings = heads.repeated(9, period, count, seed)
    assert strings.shape == (count, 2 * period)
    assert torch.equal(strings[:, :period], strings[:, period:])
    assert all(len(set(row.tolist())) == period for row in strings)
    assert torch.equal(strings, heads.repeated(9, period, count, seed))


@pytest.mark.parametrize("period", [1, 10])
def test_no_string_of_too_many_different_tokens(period: int) -> None:
    with pytest.raises(ValueError, match=f"a period of {period}"):
        heads.repeated(9, period, 1)


def test_scores_are_means_over_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    model, text, repeats = make_model(), windows()[:, :-1], heads.repeated(VOCAB, 4, 3)
    scores = heads.score_heads(model, text, repeats)
    for score in SCORES:
        one_by_one = [
            score.measure(torch.stack([a.weights_BHTS[0] for a in capture(model, w[None]).layers]))
            for w in (repeats if score.repeats else text)
        ]
        expected = torch.stack(one_by_one).mean(0)
        assert torch.allclose(scores[score.key].float(), expected, atol=1e-5), score.key
    monkeypatch.setattr(heads, "NUMBERS_AT_ONCE", 1)  # a window at a time changes nothing
    again = heads.score_heads(model, text, repeats)
    assert all(torch.allclose(scores[key], again[key]) for key in scores)


def test_ablation_is_the_change_in_loss() -> None:
    model, W = make_model(), windows()
    ablation = heads.ablate(model, W)
    with torch.no_grad():
        whole = heads.losses_of(model(W[:, :-1]), W[:, 1:]).mean(1)
        assert ablation.loss == pytest.approx(float(whole.mean()), abs=1e-5)
        assert ablation.tokens == 5 * 12
        for layer in range(2):
            for head in range(2):
                mean_D = capture(model, W[:, :-1]).layers[layer].z_BHTD[:, head].mean((0, 1))
                for value, found, error in (
                    (0.0, ablation.zero_LH, ablation.zero_error_LH),
                    (mean_D, ablation.mean_LH, ablation.mean_error_LH),
                ):
                    with head_replaced(model, layer, head, value):
                        cut = heads.losses_of(model(W[:, :-1]), W[:, 1:]).mean(1) - whole
                    assert float(found[layer, head]) == pytest.approx(float(cut.mean()), abs=1e-5)
                    expected = float(cut.std() / math.sqrt(5))
                    assert float(error[layer, head]) == pytest.approx(expected, abs=1e-5)
    assert float(ablation.zero_LH.abs().max()) > 1e-3  # these heads matter, so that it shows


def test_a_head_that_writes_nothing_costs_nothing() -> None:
    model = make_model()
    with torch.no_grad():
        blocks_of(model)[1].attn.out.weight[:, :8] = 0  # head 0 of layer 1
    ablation = heads.ablate(model, windows())
    assert float(ablation.zero_LH[1, 0]) == pytest.approx(0, abs=1e-6)
    assert float(ablation.mean_LH[1, 0]) == pytest.approx(0, abs=1e-6)
    assert abs(float(ablation.zero_LH[1, 1])) > 1e-4


def test_copying_counts_the_second_copy_only_where_it_can_be_known() -> None:
    model = make_model()
    copying = heads.measure_copying(model, 4, count=6)
    strings = heads.repeated(VOCAB, 4, 6)
    with torch.no_grad():
        losses = heads.losses_of(model(strings)[:, :-1], strings[:, 1:])
    assert copying.first == pytest.approx(float(losses[:, :3].mean()), abs=1e-5)
    assert copying.second == pytest.approx(float(losses[:, 4:].mean()), abs=1e-5)
    assert losses.size(1) == 7  # 3 of the first copy, the one nobody can know, 3 of the second
    assert copying.induction_LH.shape == (2, 2)


def test_the_logit_lens_ends_at_the_loss() -> None:
    model, W = make_model(), windows()
    losses = heads.logit_lens(model, W)
    with torch.no_grad():
        loss = heads.losses_of(model(W[:, :-1]), W[:, 1:]).mean()
        first = heads.losses_of(model.unembed(model.embed(W[:, :-1])), W[:, 1:]).mean()
    assert len(losses) == 3
    assert losses[-1] == pytest.approx(float(loss), abs=1e-5)
    assert losses[0] == pytest.approx(float(first), abs=1e-5)
