"""The checks pass for sound models; each fails, naming the place, for a model broken so."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from lens.capture import blocks_of
from lens.checks import Check, check_model
from model.attention import Attend, attention
from model.cache import Cache, KVCache
from model.gpt import GPT
from tests.lens.models import CLASSICAL, MODERN, D, L, make_model, some_tokens

KINDS = {
    "modern": MODERN,
    "classical": CLASSICAL,
    "explicit": replace(CLASSICAL, attention="explicit", norm="rmsnorm"),
    "tied": replace(MODERN, tie_embeddings=True, ngrams=3, activation="swiglu"),
    "one position": replace(MODERN, block_size=2),
}
# Of each check, in units of what rounding explains; 0 is to the last bit.
TOLERANCES = {
    "kernel of the run = formula, each head": 1,
    "layer = formula": 1,
    "layer = formula, gradient": 1,
    "layer = one projection per head": 1,
    "layer = one projection per head, gradient": 1,
    "layer = nn.MultiheadAttention": 1,
    "layer = nn.MultiheadAttention, gradient": 1,
    "model: fused = explicit kernel": 1,
    "model: fused = explicit kernel, gradient": (1 + L) ** 0.5,
    "changing a token changes nothing before it": 0,
    "no gradient from later tokens": 0,
    "last layer of the logit lens = logits": 1,
    "heads and bias sum to the layer": 1,
    "decoding with the cache = full pass": (1 + L) ** 0.5,
    "decoding without the cache = full pass": (1 + L) ** 0.5,
}
ROUNDING = {"float64": 1e-11, "float32": 2e-5, "bfloat16": 8e-2}


def failures(model: GPT, own: torch.dtype = torch.float32) -> dict[str, list[Check]]:
    """The checks that fail, by name; each must fail in both types."""
    found: dict[str, list[Check]] = {}
    for check in check_model(model, some_tokens(), own):
        if check.verdict == "failed":
            found.setdefault(check.name, []).append(check)
    return found


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("own", [torch.float32, torch.bfloat16], ids=str)
def test_sound_models_pass(kind: str, own: torch.dtype) -> None:
    config = KINDS[kind]
    found = check_model(make_model(config), some_tokens(min(10, config.block_size)), own)
    classical = config.positions == "learned"
    expected: list[tuple[Any, ...]] = []
    for dtype in ("float64", str(own).removeprefix("torch.")):
        for name, units in TOLERANCES.items():
            if classical or "nn.Multihead" not in name:
                expected.append((name, dtype, "passed", units * ROUNDING[dtype]))
            elif "gradient" not in name:
                expected.append((name, dtype, "not comparable: rotary, QK-norm", None))
    assert [(c.name, c.dtype, c.verdict) for c in found] == [e[:3] for e in expected]
    assert [c.tolerance for c in found] == pytest.approx([e[3] for e in expected])
    assert all(c.error is None or c.error <= (c.tolerance or 0) for c in found)
    assert any(c.error for c in found)


Change = Callable[[Attend, Tensor, Tensor, Tensor], Tensor]


def attending(change: Change) -> Callable[[GPT], None]:
    """Replace the kernel of layer 1."""

    def apply(model: GPT) -> None:
        attend = blocks_of(model)[1].attn.attend
        attend.register_forward_hook(lambda attend, args, z: change(attend, *args[:3]))

    return apply


def causal(q: Tensor, k: Tensor, offset: int = 0) -> Tensor:
    T, S = q.size(-2), k.size(-2)
    return torch.ones(T, S, dtype=torch.bool).tril(S - T + offset)


def sound(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return attention(q, k, v, causal(q, k))[0]


def one_head_sees_all(attend: Attend, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Head 1."""
    return attention(q, k, v, torch.stack((causal(q, k), torch.ones_like(causal(q, k)))))[0]


def next_gradient(attend: Attend, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Sound in value; the gradient of head 1 comes from the next position too."""
    z = sound(q, k, v)
    if z.requires_grad and q.size(-2) == k.size(-2):
        next_v = v[:, 1, 1:]
        z = z.clone()
        z[:, 1, :-1] = z[:, 1, :-1] + (next_v - next_v.detach())
    return z


def wrong_gradient(attend: Attend, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    z = sound(q, k, v)
    return z + (z - z.detach())


def explicit_alone(attend: Attend, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """One of the two kernels scales wrongly."""
    return sound(q * (1 + (attend.kernel == "explicit")), k, v)


def noisy(attend: Attend, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Off by five times what rounding explains."""
    z = sound(q, k, v)
    return z + 5 * ROUNDING[str(z.dtype).removeprefix("torch.")] * z.abs().max()


def leave_head_out(model: GPT) -> None:
    """Layer 1 adds what its heads say, but for head 0."""
    rest = torch.arange(2 * D) >= D
    out = blocks_of(model)[1].attn.out
    out.register_forward_pre_hook(lambda module, args: (args[0] * rest,))


def cut_after_output(model: GPT) -> None:
    """Someone 'removes head 1' of layer 1 by its channels after W_O."""
    first = torch.arange(2 * D) < D
    blocks_of(model)[1].attn.register_forward_hook(lambda module, args, y: y * first)


def other_logits(model: GPT) -> None:
    """The last layer of the logit lens is not the model's."""
    model.register_forward_hook(lambda module, args, logits: logits * 1.01)


def broken_cache(window: int) -> Callable[[GPT], None]:
    """In layer 1, from this window on, the second key is in the place of the third."""

    class Broken(KVCache):
        def append(self, k_BHTD: Tensor, v_BHTD: Tensor) -> tuple[Tensor, Tensor]:
            k, v = super().append(k_BHTD, v_BHTD)
            self.k_BHSD[:, :, 2] = self.k_BHSD[:, :, 1]
            return k, v

    class Caching(GPT):
        windows = 0

        def new_cache(self) -> Cache:
            cache = super().new_cache()
            self.windows += 1
            if self.windows >= window:
                cache.layers[1].__class__ = Broken
            return cache

    def apply(model: GPT) -> None:
        model.__class__ = Caching

    return apply


KERNEL, KERNELS = "kernel of the run = formula, each head", "model: fused = explicit kernel"
FORMULA, SPLIT = "layer = formula", "layer = one projection per head"
THEIRS, SUMS = "layer = nn.MultiheadAttention", "heads and bias sum to the layer"
TOKEN, BACK = "changing a token changes nothing before it", "no gradient from later tokens"
LENS, CACHED = "last layer of the logit lens = logits", "decoding with the cache = full pass"
# How a model is broken; some of the checks that fail then, with the places they name.
BROKEN: dict[str, tuple[Callable[[GPT], None], dict[str, list[str]]]] = {
    "mask off by one": (
        attending(lambda a, q, k, v: attention(q, k, v, causal(q, k, 1))[0]),
        {TOKEN: ["layer 1, head", "position"], FORMULA: ["layer 1, pos"]},
    ),
    "one head unmasked": (
        attending(one_head_sees_all),
        {TOKEN: ["layer 1, head 1", "position"], BACK: ["layer 1, head 1", "position"]},
    ),
    "gradient from the next": (attending(next_gradient), {BACK: ["layer 1, head 1", "position"]}),
    "beyond rounding": (attending(noisy), {KERNEL: ["layer 1, head", "position"]}),
    "wrong gradient": (
        attending(wrong_gradient),
        {f"{way}, gradient": ["layer 1"] for way in (FORMULA, SPLIT, THEIRS)},
    ),
    "kernels differ": (
        attending(explicit_alone), {KERNELS: ["logits"], f"{KERNELS}, gradient": ["weight"]}
    ),
    "head 0 left out": (
        leave_head_out,
        {SUMS: ["layer 1, head 0, position"], SPLIT: ["layer 1"], THEIRS: ["layer 1"]},
    ),
    "head cut after W_O": (cut_after_output, {SUMS: ["layer 1, head 1, position"]}),
    "other logits": (other_logits, {LENS: ["position"]}),
    "shifted cache": (broken_cache(1), {CACHED: ["layer 1, position", "head"]}),
    "shifted in the next window": (broken_cache(2), {CACHED: ["layer 1, position 1"]}),
}  # fmt: skip


@pytest.mark.parametrize("kind", BROKEN)
def test_broken_models_fail_and_say_where(kind: str) -> None:
    breaks, expected = BROKEN[kind]
    classical = any(name.startswith(THEIRS) for name in expected)
    model = make_model(CLASSICAL if classical else MODERN)
    breaks(model)
    found = failures(model)
    for name, places in expected.items():
        assert [check.dtype for check in found[name]] == ["float64", "float32"]
        for check in found[name]:
            assert all(place in check.where for place in places), check.where
            assert check.error is not None and check.error > (check.tolerance or 0)
    if kind in ("gradient from the next", "shifted cache"):  # and nothing else does
        assert {name for name in found if "gradient" not in name} == {*expected} - {BACK}


@torch.no_grad()
def test_what_says_nothing_fails() -> None:
    """A model that ignores its input, one whose logits have no gradient, and not-a-number."""
    ignores, flat, nan = make_model(), make_model(), make_model()
    ignores.token_embedding.weight.zero_()
    next(flat.final_norm.parameters()).zero_()
    blocks_of(nan)[1].mlp.up.weight[0, 0] = float("nan")
    with torch.enable_grad():
        assert {check.where for check in failures(ignores)[TOKEN]} == {"token 1 changes no logit"}
        assert failures(flat)[BACK][0].where == "a logit has no gradient at all"
        assert KERNELS in failures(nan)
