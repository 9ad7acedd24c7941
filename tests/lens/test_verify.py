"""The checks of `verify`: correct models pass; broken ones fail, and the error is located."""

import re
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from lens.capture import blocks_of
from lens.verify import TOLERANCE, check_model
from model.attention import attention, causal_mask
from model.error import largest_error, relative_error
from model.gpt import GPT
from tests.lens.models import CLASSICAL, MODERN, D, make_model, some_tokens

HEADS, LAYER = "each head = formula", "layer = one projection per head"
TORCH, SUMS = "layer = nn.MultiheadAttention", "heads and bias sum to the layer"
TOKEN, BACK = "changing a token changes nothing before it", "no gradient from later tokens"
LENS, CACHED = "last layer of the logit lens = logits", "decoding with the cache = full pass"
ALL = [HEADS, LAYER, TORCH, TOKEN, BACK, SUMS, LENS, CACHED]


@pytest.mark.parametrize("own", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    "config",
    [
        MODERN,
        CLASSICAL,
        replace(CLASSICAL, attention="explicit"),
        replace(MODERN, tie_embeddings=True, ngrams=3, positions="learned"),
        replace(MODERN, block_size=2),
        replace(MODERN, n_kv_head=1, window=5),
        replace(CLASSICAL, n_kv_head=1, window=[3, 0, 5], mlp_ratio=0, norm="none"),
    ],
    ids=["modern", "classical", "explicit", "tied", "two positions", "grouped", "attention only"],
)
def test_correct_models_pass(config, own) -> None:  # type: ignore[no-untyped-def]
    found = check_model(
        make_model(config), some_tokens(min(10, config.block_size)), torch.float64, own
    )
    assert [check.name for check in found] == 2 * ALL
    for check, dtype in zip(found, [torch.float64] * 8 + [own] * 8, strict=True):
        assert f"torch.{check.dtype}" == str(dtype)
        exact = check.name in (TOKEN, BACK)
        if check.name == TORCH and config.qk_norm:
            assert check.verdict == "not comparable: rotary or QK-norm"
        else:
            assert check.verdict == "passed"
            assert check.error is not None and check.tolerance is not None
            assert check.error <= check.tolerance <= (0 if exact else 4 * TOLERANCE[dtype])
    assert any(check.error for check in found)


def test_error_of_a_number_that_is_not_finite_is_infinite() -> None:
    got, want = torch.tensor([torch.nan, torch.inf, 1.0, 3.5]), torch.full((4,), 2.0)
    assert relative_error(got, want).tolist() == [torch.inf, torch.inf, 0.5, 0.75]
    assert largest_error(got, want) == torch.inf and largest_error(got[2:], want[2:]) == 0.75


def with_attn(change: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Callable[[GPT], None]:
    """Return a function that replaces the attention kernel of layer 1."""

    def apply(model: GPT) -> None:
        attend = blocks_of(model)[1].attn.attend
        attend.register_forward_hook(lambda module, args, z: change(*args[:3]))

    return apply


def correct(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return attention(q, k, v, causal_mask(q.size(-2), k.size(-2)))


def next_token_in_head_1(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    causal = causal_mask(q.size(-2), k.size(-2))
    return attention(q, k, v, torch.stack((causal, torch.ones_like(causal).tril(1))))


def wrong_after_the_window_moves(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Change the output of the pass that fills the cache again, with half of a window."""
    return correct(q, k, v) + (q.size(-2) == MODERN.block_size // 2 + 1)


def doubled_gradient(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    z = correct(q, k, v)
    return z + (z - z.detach())


def head_0_omitted(model: GPT) -> None:
    rest = torch.arange(2 * D) >= D
    out = blocks_of(model)[1].attn.out
    out.register_forward_pre_hook(lambda module, args: (args[0] * rest,))


def logits_beyond_rounding(model: GPT) -> None:
    def scale(module: GPT, args: object, logits: Tensor) -> Tensor:
        return logits * (1 + 5 * TOLERANCE[logits.dtype])

    model.register_forward_hook(scale)


# How each model is broken, and some of the checks that fail, with the locations they report.
BROKEN = {
    "mask of the next token": (
        with_attn(next_token_in_head_1),
        {
            TOKEN: "head 1, position",
            BACK: "position ., from",
            HEADS: "head 1",
            LAYER: "layer 1, pos",
        },
    ),
    "doubled gradient": (with_attn(doubled_gradient), {LAYER: "layer 1, grad", TORCH: "layer 1"}),
    "head 0 left out": (head_0_omitted, {SUMS: "layer 1, position", TORCH: "layer 1"}),
    "other logits": (logits_beyond_rounding, {LENS: "position"}),
    "other cache": (
        with_attn(wrong_after_the_window_moves),
        {CACHED: "layer 1, position 12, head"},
    ),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_broken_models_fail_with_the_location(kind: str) -> None:
    breaks, expected = BROKEN[kind]
    model = make_model(CLASSICAL if TORCH in expected else MODERN)
    breaks(model)
    found = check_model(model, some_tokens(), torch.float64, torch.float32)
    for name, place in expected.items():
        for check in (check for check in found if check.name == name):
            assert check.verdict == "failed" and re.search(place, check.where), check
            assert check.error is not None and check.error > (check.tolerance or 0)
