"""The tools for chosen tokens and keys, on models whose answer is known and against the formula."""

import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from common.errors import UserError
from data.tokenizer import ByteTokenizer, CharTokenizer
from lens import measure
from lens.capture import (
    LayerPass,
    capture,
    head_replaced,
    key_hidden,
    key_moved,
    without_mask,
)
from lens.measure import ablations, mean_and_error, mean_outputs, weight_by_distance
from lens.subject import MeasureOptions, Subject
from lens.token import find_token
from model.gpt import GPT
from tests.conftest import make_run
from tests.lens.models import MODERN, D, H, make_model, some_tokens
from tests.lens.test_tasks import tables
from training.checkpoint import open_run

TEXT, TOKEN = some_tokens(5, 12), 3
LABELS = list("abcdefghijk")
T = MODERN.block_size


@pytest.fixture(params=[1, 12 * 12 * 2 * 3], ids=["one by one", "three at once"])
def model(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> GPT:
    """Return a model that is measured on one or three sequences at a time."""
    monkeypatch.setattr(measure, "NUMBERS_AT_ONCE", request.param)
    return make_model()


def rotary_of(x: Tensor, positions: float | Tensor) -> Tensor:
    """Rotate (..., D) by positions, with complex numbers."""
    half = x.size(-1) // 2
    angles = torch.tensor([10_000 ** (-i / half) for i in range(half)])
    turns = torch.polar(torch.ones(half), angles * torch.as_tensor(positions)[..., None])
    turned = torch.complex(x[..., :half], x[..., half:]) * turns
    return torch.cat((turned.real, turned.imag), dim=-1)


def layer_weights(layer: LayerPass, where: Tensor, hidden: Tensor | None = None) -> Tensor:
    """Return the weights of a layer, recomputed with each key at a position, (H, S)."""
    attn, x_BTC = layer.attn, layer.x_BTC
    q_BHTD = attn.q_norm(attn.split_heads(attn.query(x_BTC)))
    k_BHSD = attn.k_norm(attn.split_heads(attn.key(x_BTC)))
    q_BHTD, k_BHSD = rotary_of(q_BHTD, torch.arange(x_BTC.size(1))), rotary_of(k_BHSD, where)
    scores = torch.einsum("bhtd,bhsd->bhts", q_BHTD, k_BHSD) / math.sqrt(D)
    future = torch.ones(scores.shape[-2:]).triu(1).bool()
    hidden = future if hidden is None else future | hidden
    return scores.masked_fill(hidden, -math.inf).softmax(-1)


@torch.no_grad()
def test_weight_by_distance_is_that_of_a_plain_loop(model: GPT) -> None:
    """A sequence without the token, and queries before the first one, count nowhere."""
    tokens = TEXT.clone()
    tokens[2][tokens[2] == TOKEN] = 0
    weight_LHT, count_T = weight_by_distance(model, tokens, TOKEN)
    found: dict[int, list[Tensor]] = {}
    for row in tokens:
        weights_LHTS = torch.cat([p.weights_BHTS for p in capture(model, row[None]).layers])
        for q in range(T):
            places = [k for k in range(q + 1) if row[k] == TOKEN]
            if places:
                found.setdefault(q - places[-1], []).append(weights_LHTS[:, :, q, places[-1]])
    assert count_T.tolist() == [len(found.get(distance, [])) for distance in range(T)]
    assert int(count_T[0]) > 0 and int(count_T.sum()) < tokens.numel()
    for distance, each in found.items():
        expected = torch.stack(each).mean(0).double()
        assert torch.allclose(weight_LHT[..., distance], expected, atol=1e-6)


def test_a_token_is_one_token() -> None:
    tokenizer = CharTokenizer("\n\t ab\\")
    for text, char in (("\\n", "\n"), ("\\t", "\t"), ("\n", "\n"), (" ", " "), ("\\", "\\")):
        assert tokenizer.decode([find_token(tokenizer, text)]) == char
    for text in ("ab", "", "\\n\\n"):
        with pytest.raises(UserError, match=r"TOKEN .* must be one token"):
            find_token(tokenizer, text)
    with pytest.raises(UserError, match="one token, not 2"):
        find_token(ByteTokenizer(), "é")


@given(st.integers(-T, T - 1), st.integers(1 - T, T - 1), st.sets(st.integers(0, H - 1)))
@torch.no_grad()
def test_moved_key_is_that_key_rotated_at_another_position(
    position: int, by: int, heads: set[int]
) -> None:
    model = make_model()
    before = capture(model, TEXT)
    with key_moved(model, 1, heads, position, by):
        after = capture(model, TEXT)
    where = torch.arange(T).repeat(H, 1)
    where[[*heads], position] += by
    expected = layer_weights(before.layers[1], where)
    assert torch.allclose(after.layers[1].weights_BHTS, expected, atol=1e-5)
    z_BHTD = expected @ before.layers[1].v_BHSD
    assert torch.allclose(after.layers[1].z_BHTD, z_BHTD, atol=1e-5)
    assert torch.equal(after.layers[0].z_BHTD, before.layers[0].z_BHTD)
    if by == 0 or not heads:
        assert torch.equal(after.logits_BTV, before.logits_BTV)
    assert torch.equal(capture(model, TEXT).logits_BTV, before.logits_BTV)


@pytest.mark.parametrize("kernel", ["fused", "explicit"])
@given(position=st.integers(-T, T - 1), heads=st.sets(st.integers(0, H - 1)))
@torch.no_grad()
def test_hidden_key_has_no_weight_for_later_queries(
    kernel: Any, position: int, heads: set[int]
) -> None:
    model = make_model(replace(MODERN, attention=kernel))
    before = capture(model, TEXT)
    with key_hidden(model, 1, heads, position):
        after = capture(model, TEXT)
    position %= T
    hidden = torch.zeros(H, T, T, dtype=torch.bool)
    hidden[[*heads], position + 1 :, position] = True
    expected = layer_weights(before.layers[1], torch.arange(T).repeat(H, 1), hidden)
    assert torch.allclose(after.layers[1].weights_BHTS, expected, atol=1e-5)
    z_BHTD = expected @ before.layers[1].v_BHSD
    assert torch.allclose(after.layers[1].z_BHTD, z_BHTD, atol=1e-5)
    assert torch.allclose(
        after.logits_BTV[:, : position + 1], before.logits_BTV[:, : position + 1], atol=1e-5
    )
    assert torch.equal(capture(model, TEXT).logits_BTV, before.logits_BTV)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    "edit",
    [
        *(lambda model, p=p: key_hidden(model, 0, [1], p) for p in (0, 3, 7, -2, -8)),
        *(lambda model, p=p: key_moved(model, 0, [0, 1], p, 2) for p in (0, 3, 7, -1, -8)),
        lambda model: head_replaced(model, 0, 1, torch.arange(D) / 2),
        without_mask,
        lambda model: without_mask(model, later=False),
        lambda model: without_mask(model, window=False),
    ],
)
@torch.no_grad()
def test_an_edit_while_decoding_is_that_of_a_full_pass(edit: Any, dtype: torch.dtype) -> None:
    """After a prompt of 5 tokens, which ends before some positions, and after each next token."""
    model = make_model(replace(MODERN, n_layer=1, window=9))
    model.get_parameter("blocks.0.attn.q_norm.weight").mul_(4)  # keys matter more
    model.compute_dtype = dtype
    cache, plain, error = model.new_cache(), model(TEXT), 1e-4 if dtype == torch.float32 else 0.1
    with edit(model):
        for start, end in pairwise((0, *range(5, T + 1))):
            full = model(TEXT[:, :end])
            assert torch.allclose(model(TEXT[:, start:end], cache)[:, -1], full[:, -1], atol=error)
    assert (full - plain).abs().max() > 3 * error


def test_keys_without_rotation_or_beyond_the_context_do_not_move() -> None:
    for positions in ("learned", "none"):
        config: Any = replace(MODERN, positions=positions)
        with (
            pytest.raises(UserError, match=f"cannot be moved with model.positions {positions}"),
            key_moved(make_model(config), 0, [0], 3, 1),
        ):
            pass
    for by in (T, -T):
        with (
            pytest.raises(UserError, match=f"fewer than {T} positions, not {by}"),
            key_moved(make_model(), 0, [0], 3, by),
        ):
            pass


@torch.no_grad()
def test_probability_is_that_after_each_position(workplace: Path) -> None:
    make_run(workplace / "runs" / "text")
    model, prompt = open_run("text").model(), "not a b\nor"
    ids = torch.tensor(["\n abcdefghijklmnopqrstuvwxyz".index(char) for char in prompt])
    for text, token in (("\\n", 0), ("b", 3)):
        ((heading, *rows),) = tables("probability", text, "text", f"--prompt={prompt}")
        exponents = model(ids[None])[0].exp()
        expected = exponents[:, token] / exponents.sum(-1)
        assert heading[-1] == f"P({'b' if token else '↵'} is next)"
        assert [row[:2] for row in rows] == [
            [str(i), {"\n": "↵", " ": "␣"}.get(char, char)] for i, char in enumerate(prompt)
        ]
        assert [row[2] for row in rows] == pytest.approx(expected.tolist(), rel=1e-4)


@torch.no_grad()
def test_token_prints_its_tables_with_heads_ablated(
    workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a token that only begins a sequence there is one table."""
    monkeypatch.setattr("lens.token.COLUMNS", 4)
    make_run(workplace / "runs" / "text")
    Path("text.txt").write_text("to be or not\nto be aso or\n" * 400, newline="\n")
    flags = ["text", "--source=text.txt", "--sequences=53"]
    of, at = tables("token", "o", *flags)
    saved = open_run("text")
    options = MeasureOptions(source="text.txt", sequences=53)
    model, tokens_BT = saved.model(), Subject("text", options).sequences(53)
    token, far = find_token(saved.tokenizer, "o"), 7  # tokens from one to the next, at most
    weight_LHT, count_T = weight_by_distance(model, tokens_BT[:, :-1], token)
    sums = [int(part.sum()) for part in count_T[:far].split(2)]
    assert of[0][1:] == ["0-1", "2-3", "4-5", "6"] and of[1][1:] == sums
    for (_, *cells), weight_T in zip(of[2:], weight_LHT.flatten(0, 1), strict=True):
        parts = (weight_T * count_T)[:far].split(2)
        expected = [float(part.sum()) / n for part, n in zip(parts, sums, strict=True)]
        assert cells == pytest.approx(expected)
    change_LHBT = ablations(model, tokens_BT, mean_outputs(model, tokens_BT), "")
    at_BT, (heading, *rows) = tokens_BT[:, 1:] == token, at
    assert heading[1:3] == [f"loss change at o ({int(at_BT.sum())} places)", "elsewhere"]
    assert rows == sorted(rows, key=lambda row: -row[1][0])
    for name, *pairs, ratio in rows:
        change_BT = change_LHBT[int(name[1]), int(name[3])]
        for pair, here_BT in zip(pairs, (at_BT, ~at_BT), strict=True):
            assert pair == pytest.approx([*mean_and_error(change_BT, here_BT)])
        (there, _), (elsewhere, error) = pairs
        assert ratio == (pytest.approx(there / elsewhere) if elsewhere > 2 * error else None)
    assert 0 < [row[-1] for row in rows].count(None) < len(rows)
    of_without, at_without = tables("token", "o", *flags, "--without=L0H0")
    assert of_without[1:4] == of[1:4]  # the queries, and layer 0
    assert of_without[4:] != of[4:]
    assert {row[0]: row for row in at_without[1:]} != {row[0]: row for row in at[1:]}
    Path("text.txt").write_text("a" * 990 + "b" + "a" * 109, newline="\n")
    assert len(tables("token", "b", *flags)) == 1
