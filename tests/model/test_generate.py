"""Decoding equals the full forward pass; tokens are drawn from the distribution defined."""

import math
from itertools import accumulate
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from model.config import ModelConfig
from model.generate import Decoder, generate, next_token_probabilities, window_start
from model.gpt import GPT

V = 11


def make(block_size: int = 8, **options: Any) -> GPT:
    torch.manual_seed(3)
    options = {"tie_embeddings": True, "zero_init": False, **options}
    model = GPT(ModelConfig(block_size=block_size, n_layer=2, n_head=2, n_embd=16, **options), V)
    for table in model.ngram_embeddings:
        nn.init.normal_(table.get_parameter("weight"), std=0.01)  # as after training
    for p in model.parameters():
        p.data *= 5  # far from uniform, so that a wrong position would change the text
    return model.double().eval()


def full_logits(model: GPT, text: Tensor) -> Tensor:
    """(B, V): what comes next, by a pass over what the model may see at the last position."""
    start = window_start(text.size(1) - 1, model.config.block_size)
    return model(text[:, start:])[:, -1]


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


@pytest.mark.parametrize(
    ("positions", "ngrams", "block_size", "prompt"),
    [("rotary", 1, 1, 1), ("learned", 1, 7, 5), ("rotary", 3, 8, 30)],
)
def test_greedy_text_is_the_same_without_the_cache(
    positions: Any, ngrams: int, block_size: int, prompt: int
) -> None:
    model = make(block_size=block_size, positions=positions, ngrams=ngrams)
    start = torch.randint(0, V, (2, prompt))
    cached: list[bool] = []
    handle = model.register_forward_hook(
        lambda module, args, logits: cached.append(args[1] is not None)
    )
    texts = [
        torch.stack(list(generate(model, start, 25, temperature=0, use_cache=use_cache)), 1)
        for use_cache in (True, False)
    ]
    handle.remove()
    assert torch.equal(*texts) and cached == [True] * 25 + [False] * 25
    text = torch.cat((start, texts[0]), 1)
    for end in range(prompt, prompt + 25):
        assert torch.equal(full_logits(model, text[:, :end]).argmax(-1), text[:, end])


@pytest.mark.parametrize("use_cache", [True, False])
@given(st.lists(st.integers(1, 20), min_size=1, max_size=5), st.integers(1, 4), st.integers(1, 9))
def test_any_split_equals_full_passes(
    use_cache: bool, parts: list[int], ngrams: int, block_size: int
) -> None:
    model = make(ngrams=ngrams, block_size=block_size)
    text = torch.randint(0, V, (2, sum(parts)), generator=torch.Generator().manual_seed(0))
    decoder = Decoder(model, use_cache)
    for part, end in zip(torch.split(text, parts, dim=1), accumulate(parts), strict=True):
        full = full_logits(model, text[:, :end])
        torch.testing.assert_close(decoder.read(part), full, rtol=0, atol=1e-11)


def test_arguments_reach_the_distribution() -> None:
    """The first token over many seeds: each filter's support, and the frequencies."""
    model, prompt = make(), torch.zeros(2000, 1, dtype=torch.long)
    logits = model(prompt[:1])[:, -1].float()
    for arguments in (
        {"temperature": 0.5},
        {"temperature": 2.0, "top_k": 3},
        {"temperature": 2.0, "top_p": 0.6},
        {"temperature": 2.0, "min_p": 0.4},
    ):
        generator = torch.Generator().manual_seed(1)
        (drawn,) = generate(model, prompt, 1, generator=generator, **arguments)  # type: ignore
        expected = next_token_probabilities(logits, **arguments)[0]  # type: ignore
        found = drawn.bincount(minlength=V) / 2000
        assert (found[expected == 0] == 0).all()
        torch.testing.assert_close(found, expected, rtol=0, atol=0.06)


def test_a_seed_repeats_and_training_is_undisturbed() -> None:
    model = make(dropout=0.3).train()
    prompt = torch.zeros(1, 1, dtype=torch.long)
    state = torch.get_rng_state()

    def text(seed: int) -> list[int]:
        generator = torch.Generator().manual_seed(seed)
        return [int(t) for t in generate(model, prompt, 30, generator=generator)]

    assert text(1) == text(1)
    assert text(1) != text(2)
    assert model.training
    model.eval()
    text(1)
    assert not model.training
    assert torch.equal(state, torch.get_rng_state())


def by_definition(
    logits: list[float], temperature: float, top_k: int | None, top_p: float, min_p: float
) -> list[float]:
    """The filters one after the other, over a sorted list."""
    if temperature == 0:
        top_k, temperature = 1, 1.0
    largest = max(logits)
    weights = [math.exp((x - largest) / temperature) for x in logits]
    order = sorted(range(len(logits)), key=lambda i: -logits[i])[:top_k]
    total, before = sum(weights[i] for i in order), 0.0
    kept: list[int] = []
    for i in order:
        near = abs(before / total - top_p), abs(weights[i] - min_p)
        assume(min(near) > 1e-5 or not kept)  # rounding may decide either way
        if not kept or (before < top_p * total and weights[i] >= min_p):
            kept.append(i)
        before += weights[i]
    rest = sum(weights[i] for i in kept)
    return [weights[i] / rest if i in kept else 0.0 for i in range(len(logits))]


@given(
    st.lists(st.integers(-40, 40), min_size=2, max_size=12, unique=True),
    st.sampled_from([0, 1e-30, 0.3, 1, 3]),
    st.none() | st.integers(1, 15),
    st.just(1.0) | st.floats(0.001, 0.999),
    st.just(0.0) | st.floats(0.001, 0.999),
)
@settings(max_examples=150)
def test_next_token_probabilities_are_those_of_the_definition(
    tenths: list[int], temperature: float, top_k: int | None, top_p: float, min_p: float
) -> None:
    logits = [x / 10 for x in tenths]
    expected = by_definition(logits, temperature, top_k, top_p, min_p)
    rows = torch.tensor([logits, logits[::-1]], dtype=torch.float64)
    found = next_token_probabilities(rows, temperature, top_k, top_p, min_p)
    torch.testing.assert_close(found[0].tolist(), expected, rtol=0, atol=1e-9)
    torch.testing.assert_close(found[1].tolist(), expected[::-1], rtol=0, atol=1e-9)


def test_ties_and_limits() -> None:
    tie = torch.zeros(1, 4)
    assert next_token_probabilities(tie, top_k=2).tolist() == [[0.5, 0.5, 0, 0]]
    assert next_token_probabilities(tie, temperature=0).tolist() == [[1, 0, 0, 0]]
    halves = torch.tensor([[0.5, 0.25, 0.125, 0.125]]).log()
    for top_p, kept in ((1e-300, 1), (0.5, 1), (0.75, 2), (0.875, 3)):
        assert (next_token_probabilities(halves, top_p=top_p) > 0).sum() == kept
    masked = torch.tensor([[-math.inf, 1.0, 2.0]])
    assert next_token_probabilities(masked, temperature=1.3, top_p=0.95)[0, 0] == 0


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_logits_that_are_not_finite_are_refused(bad: float) -> None:
    model = make().train()
    third = torch.tensor([3])
    model.register_forward_hook(lambda module, args, logits: logits.index_fill(-1, third, bad))
    with pytest.raises(FloatingPointError, match="not finite"):
        list(generate(model, torch.zeros(1, 1, dtype=torch.long), 3))
    assert model.training
