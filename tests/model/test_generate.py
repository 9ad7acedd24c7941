"""Decoding with the cache is the full forward pass; filters keep a distribution."""

import math
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import nn

from model.config import ModelConfig
from model.generate import Decoder, generate, next_token_probabilities, window_start
from model.gpt import GPT

V = 11


def make(dtype: torch.dtype = torch.float64, block_size: int = 8, **options: Any) -> GPT:
    torch.manual_seed(3)
    options = {"tie_head": True, "zero_init": False, **options}
    model = GPT(ModelConfig(block_size=block_size, n_layer=2, n_head=2, n_embd=16, **options), V)
    for table in model.ngram_embeddings:
        nn.init.normal_(table.get_parameter("weight"), std=0.01)  # as after training
    for p in model.parameters():
        p.data *= 5  # far from uniform, so that a wrong position would change the text
    return model.to(dtype).eval()


def full_logits(model: GPT, text: torch.Tensor) -> torch.Tensor:
    """(B, T, V): at each position a forward pass of its own over what it may see."""
    rows = []
    for p in range(text.size(1)):
        start = window_start(p, model.config.block_size)
        rows.append(model(text[:, start : p + 1])[:, -1])
    return torch.stack(rows, 1)


@given(st.integers(0, 2000), st.integers(1, 65))
def test_window_start(position: int, block_size: int) -> None:
    start = window_start(position, block_size)
    assert 0 <= start <= position and position - start < block_size
    if position < block_size:
        assert start == 0
    elif start != window_start(position - 1, block_size):
        assert position - start == block_size // 2, "the last half of a full window is kept"
        assert position - window_start(position - 1, block_size) == block_size
    assert start >= window_start(max(0, position - 1), block_size)


@pytest.mark.parametrize(("positions", "ngrams"), [("learned", 1), ("rotary", 1), ("rotary", 3)])
@pytest.mark.parametrize("block_size", [1, 2, 7, 8])
@pytest.mark.parametrize("prompt", [1, 5, 8, 30])
def test_greedy_text_is_the_same_without_the_cache(
    positions: Any, ngrams: int, block_size: int, prompt: int
) -> None:
    model = make(block_size=block_size, positions=positions, ngrams=ngrams)
    start = torch.randint(0, V, (2, prompt))
    texts = [
        torch.stack(list(generate(model, start, 25, temperature=0, use_cache=use_cache)))
        for use_cache in (True, False)
    ]
    assert torch.equal(*texts)
    text = torch.cat((start, texts[0].T), 1)
    assert torch.equal(full_logits(model, text).argmax(-1)[:, prompt - 1 : -1], texts[0].T)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.bfloat16, 0.5)])
def test_logits_are_the_same_without_the_cache_in_every_type(
    dtype: torch.dtype, tolerance: float
) -> None:
    model = make(dtype)
    text = torch.randint(0, V, (2, 30))
    full = full_logits(model, text)
    decoder = Decoder(model, 2)
    for p in range(30):
        torch.testing.assert_close(
            decoder.read(text[:, p : p + 1]), full[:, p], rtol=0, atol=tolerance
        )


@given(st.lists(st.integers(1, 20), min_size=1, max_size=5), st.integers(1, 4))
def test_reading_in_any_pieces_ends_the_same(pieces: list[int], ngrams: int) -> None:
    model = make(ngrams=ngrams)
    text = torch.randint(0, V, (1, sum(pieces)), generator=torch.Generator().manual_seed(0))
    decoder = Decoder(model)
    for piece in torch.split(text, pieces, dim=1):
        logits = decoder.read(piece)
    torch.testing.assert_close(logits, full_logits(model, text)[:, -1], rtol=0, atol=1e-12)


def test_streams_side_by_side_are_those_alone() -> None:
    model = make()
    prompts = torch.randint(0, V, (3, 5))
    together = torch.stack(list(generate(model, prompts, 20, temperature=0)), 1)
    for i in range(3):
        alone = torch.stack(list(generate(model, prompts[i : i + 1], 20, temperature=0)), 1)
        assert torch.equal(together[i], alone[0])


def test_a_seed_repeats_and_training_goes_on_undisturbed() -> None:
    model = make(dropout=0.3).train()
    prompt = torch.zeros(1, 1, dtype=torch.long)
    state = torch.get_rng_state()

    def write(seed: int) -> list[int]:
        generator = torch.Generator().manual_seed(seed)
        return [int(t) for t in generate(model, prompt, 30, generator=generator)]

    assert write(1) == write(1)
    assert write(1) != write(2)
    assert model.training
    assert torch.equal(state, torch.get_rng_state())


logits_lists = st.lists(st.floats(-30, 30), min_size=2, max_size=12)


@given(
    logits_lists,
    st.floats(0, 3),
    st.none() | st.integers(1, 15),
    st.floats(0.01, 1),
    st.floats(0, 0.99),
)
@settings(max_examples=200)
def test_filters_keep_a_distribution(
    logits: list[float], temperature: float, top_k: int | None, top_p: float, min_p: float
) -> None:
    row = torch.tensor([logits])
    p = next_token_probabilities(row, temperature, top_k, top_p, min_p)[0]
    assert p.isfinite().all() and (p >= 0).all()
    assert p.sum().item() == pytest.approx(1, abs=1e-5)
    likeliest = row[0] == row[0].max()
    assert p[likeliest].max() == p.max(), "the likeliest token always stays the likeliest"
    if top_k is not None:
        assert (p > 0).sum() <= top_k
    order = row[0].argsort(descending=True)
    kept = p[order] > 0
    dropped_finite = row[0][order][~kept] > row[0][order][kept].min()
    assert not dropped_finite.any(), "a token was kept and a likelier one dropped"


def test_top_k_keeps_k_and_above_the_vocabulary_all() -> None:
    logits = torch.tensor([[3.0, 1.0, 2.0, 0.0]])
    torch.testing.assert_close(
        next_token_probabilities(logits, top_k=2),
        torch.tensor([[1, 0, 1 / math.e, 0]]) / (1 + 1 / math.e),
    )
    torch.testing.assert_close(next_token_probabilities(logits, top_k=99), logits.softmax(-1))
    tie = torch.zeros(1, 4)
    assert (next_token_probabilities(tie, top_k=2) > 0).sum() == 2


def test_top_p_keeps_the_fewest_that_reach_it() -> None:
    logits = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log()
    for top_p, kept in ((0.4, 1), (0.6, 2), (0.79, 2), (0.9, 3), (1.0, 4)):
        assert (next_token_probabilities(logits, top_p=top_p) > 0).sum() == kept


def test_top_p_stops_where_it_is_reached_exactly() -> None:
    halves = torch.tensor([[0.5, 0.25, 0.125, 0.125]]).log()
    for top_p, kept in ((1e-300, 1), (0.5, 1), (0.75, 2), (0.875, 3)):
        assert (next_token_probabilities(halves, top_p=top_p) > 0).sum() == kept


def test_min_p_is_relative_to_the_likeliest() -> None:
    logits = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log()
    for min_p, kept in ((0.0, 4), (0.11, 3), (0.31, 2), (0.9, 1)):
        assert (next_token_probabilities(logits, min_p=min_p) > 0).sum() == kept


def test_temperature() -> None:
    logits = torch.tensor([[1.0, 2.0, 0.0]])
    assert next_token_probabilities(logits, temperature=0).tolist() == [[0, 1, 0]]
    assert next_token_probabilities(logits, temperature=1e-30)[0, 1] == 1
    torch.testing.assert_close(
        next_token_probabilities(logits, temperature=0.5), (logits * 2).softmax(-1)
    )


@given(logits_lists)
def test_masked_tokens_are_never_drawn(logits: list[float]) -> None:
    assume(len(logits) > 2)
    row = torch.tensor([logits])
    row[0, 0] = -math.inf
    assert next_token_probabilities(row, temperature=1.3, top_p=0.95)[0, 0] == 0
