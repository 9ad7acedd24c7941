"""Generation: cached decoding matches full passes, and sampling matches its definition."""

import math
from itertools import accumulate, pairwise

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from model.generate import Sampling, Window, generate, window_start
from model.gpt import GPT
from tests.model.test_gpt import V, make


def full_logits(model: GPT, text: Tensor) -> Tensor:
    """Return the logits of the next token, (B, V), by a pass over the current window."""
    start = window_start(text.size(1) - 1, model.config.block_size)
    return model(text[:, start:])[:, -1]


@given(st.integers(1, 2000), st.integers(1, 65))
def test_window_moves_by_half_when_it_is_full(position: int, block_size: int) -> None:
    start, before = (window_start(p, block_size) for p in (position, position - 1))
    assert before <= start <= position < start + block_size
    if start != before:
        assert position - before == block_size  # the window moves when it is full
        assert position - start == block_size // 2  # its last half is kept


@given(
    st.lists(st.integers(1, 5), min_size=2, max_size=8),
    st.integers(1, 3),
    st.integers(1, 4),
    st.integers(1, 16),
)
def test_any_split_matches_full_passes(
    parts: list[int], batch_size: int, ngrams: int, block_size: int
) -> None:
    """The text may exceed a window. In each window, the cache stays where it was allocated."""
    model = make(True, block_size=block_size, ngrams=ngrams)
    text = torch.randint(0, V, (batch_size, sum(parts)), generator=torch.Generator().manual_seed(0))
    window, places = Window(model), dict[int, object]()
    for part, end in zip(torch.split(text, parts, dim=1), accumulate(parts), strict=True):
        full = full_logits(model, text[:, :end])
        torch.testing.assert_close(window.read(part), full, rtol=0, atol=1e-11)
        place = [layer.kv_2BHSD.data_ptr() for layer in window.cache.layers]
        assert places.setdefault(window.start, place) == place


def test_generate_matches_sampling_by_full_passes() -> None:
    """The text exceeds a window. The global RNG state stays the same."""
    model, sampling = make(True, positions="learned"), Sampling(2.0, top_k=5)
    prompt, state = torch.randint(0, V, (3, 5)), torch.get_rng_state()
    sampled = generate(model, prompt, 25, sampling, torch.Generator().manual_seed(7))
    text = torch.cat((prompt, torch.stack(list(sampled), 1)), 1)
    assert torch.equal(state, torch.get_rng_state())
    generator, expected = torch.Generator().manual_seed(7), prompt
    for _ in range(25):
        probabilities = sampling.probabilities(full_logits(model, expected).float())
        token = torch.multinomial(probabilities, 1, generator=generator)
        expected = torch.cat((expected, token), 1)
    assert torch.equal(text, expected)


def by_definition(logits: list[float], sampling: Sampling) -> list[float]:
    """Apply temperature, top_k and top_p in plain loops over a sorted list."""
    weights = [math.exp((x - max(logits)) / sampling.temperature) for x in logits]
    order = sorted(range(len(logits)), key=lambda i: -logits[i])[: sampling.top_k]
    total, before = sum(weights[i] for i in order), 0.0
    kept = order[:1]
    for previous, i in pairwise(order):
        before += weights[previous] / total
        # At the threshold, rounding would decide.
        assume(abs(before - sampling.top_p) > 1e-5)
        if before < sampling.top_p:
            kept.append(i)
    rest = sum(weights[i] for i in kept)
    return [weights[i] / rest if i in kept else 0.0 for i in range(len(logits))]


@given(
    st.lists(st.integers(-40, 40), min_size=2, max_size=12, unique=True),
    st.sampled_from([1e-3, 0.3, 1, 3]),
    st.none() | st.integers(1, 15),
    st.just(1.0) | st.floats(0.001, 0.999),
)
@settings(max_examples=150)
def test_probabilities_match_their_definition(
    tenths: list[int], temperature: float, top_k: int | None, top_p: float
) -> None:
    """Each row of a batch has its own thresholds."""
    rows, sampling = [[x / 10, -x / 5] for x in tenths], Sampling(temperature, top_k, top_p)
    logits = torch.tensor(rows, dtype=torch.float64).T
    before = logits.clone()
    expected = [by_definition(row, sampling) for row in logits.tolist()]
    found = sampling.probabilities(logits)
    torch.testing.assert_close(found.tolist(), expected, rtol=0, atol=1e-9)
    assert logits.equal(before)  # they are not modified


def test_top_p_at_exact_sums_and_temperature_near_zero() -> None:
    halves = torch.tensor([[0.5, 0.25, 0.125, 0.125]]).log()
    for top_p, kept in ((1e-6, 1), (0.5, 1), (0.75, 2), (0.875, 3)):
        assert (Sampling(1.0, top_p=top_p).probabilities(halves) > 0).sum() == kept
    for temperature in (0, 1e-40):
        assert Sampling(temperature).probabilities(halves + 9).tolist() == [[1, 0, 0, 0]]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_logits_must_be_finite(bad: float) -> None:
    model = make()
    third = torch.tensor([3])
    model.final_norm.register_forward_hook(lambda _, args, x: x.index_fill(-1, third, bad))
    with pytest.raises(FloatingPointError, match="not finite"):
        list(generate(model, torch.zeros(1, 1, dtype=torch.long), 3, Sampling()))
