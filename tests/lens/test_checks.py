"""The checks pass for sound models; each fails, naming the place, for a model broken so."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from lens.capture import blocks_of
from lens.checks import Check, check_model
from model.attention import Attend, MultiHeadAttention, attention
from model.cache import Cache, KVCache
from model.gpt import GPT
from tests.lens.models import CLASSICAL, MODERN, D, L, make_model, some_tokens

KINDS = {
    "modern": MODERN,
    "classical": CLASSICAL,
    "explicit": replace(CLASSICAL, attention="explicit"),
    "ngrams": replace(MODERN, ngrams=3),
    "tied": replace(MODERN, tie_embeddings=True, norm="rmsnorm", activation="swiglu"),
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
    "model: fused = explicit kernel, gradient": 1 + L,
    "changing a token changes nothing before it": 0,
    "no gradient from later tokens": 0,
    "last layer of the logit lens = logits": 1,
    "heads and bias sum to the layer": 1,
    "decoding with the cache = full pass": 1 + L,
    "decoding without the cache = full pass": 1 + L,
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

    class Broken(Attend):
        def forward(self, q: Tensor, k: Tensor, v: Tensor, *args: Any) -> Tensor:
            return change(self, q, k, v)

    def apply(model: GPT) -> None:
        blocks_of(model)[1].attn.attend.__class__ = Broken

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


def noisy(factor: float) -> Change:
    """Off by this many times what rounding explains, where attention is the run's own."""

    def change(attend: Attend, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        z = sound(q, k, v)
        error = factor * ROUNDING[str(z.dtype).removeprefix("torch.")]
        return z + error * z.abs().max() * (1 if q.size(-2) == k.size(-2) > 1 else -1)

    return change


def leave_head_out(model: GPT) -> None:
    """Layer 1 adds what its heads say, but for head 0."""

    class Without(MultiHeadAttention):
        def merge_heads(self, z_BHTD: Tensor) -> Tensor:
            return super().merge_heads(z_BHTD * torch.tensor([0, 1])[:, None, None])

    blocks_of(model)[1].attn.__class__ = Without


def cut_after_output(model: GPT) -> None:
    """Someone 'removes head 1' of layer 1 by its channels after W_O."""

    class Cut(MultiHeadAttention):
        def forward(self, *args: Any, **kwargs: Any) -> Tensor:
            return super().forward(*args, **kwargs) * (torch.arange(2 * D) < D)

    blocks_of(model)[1].attn.__class__ = Cut


def later_logits(model: GPT) -> None:
    """The last layer of the logit lens is not the model's."""

    class Other(GPT):
        def forward(self, tokens_BT: Tensor, cache: Cache | None = None) -> Tensor:
            return super().forward(tokens_BT, cache) * 1.01

    model.__class__ = Other


def broken_cache(corrupt: Callable[[KVCache, int], None]) -> Callable[[GPT], None]:
    """Corrupt the cache of layer 1 after each append; told how often it was begun anew."""

    class Broken(KVCache):
        windows = 0

        def append(self, k_BHTD: Tensor, v_BHTD: Tensor) -> tuple[Tensor, Tensor]:
            k, v = super().append(k_BHTD, v_BHTD)
            corrupt(self, self.windows)
            return k, v

    class Caching(GPT):
        windows: int

        def new_cache(self) -> Cache:
            cache = super().new_cache()
            self.windows = getattr(self, "windows", 0) + 1
            layer = cache.layers[1]
            layer.__class__ = Broken
            assert isinstance(layer, Broken)
            layer.windows = self.windows
            return cache

    def apply(model: GPT) -> None:
        model.__class__ = Caching

    return apply


def shift(cache: KVCache, windows: int) -> None:
    if cache.length == 3:  # the third key is overwritten by the second
        cache.k_BHSD[:, :, 2] = cache.k_BHSD[:, :, 1]


def shift_later(cache: KVCache, windows: int) -> None:
    if windows > 1:
        cache.v_BHSD[:, :, 2] = cache.v_BHSD[:, :, 1]


TOKEN, GRADIENT = "changing a token changes nothing before it", "no gradient from later tokens"
KERNEL, SUMS = "kernel of the run = formula, each head", "heads and bias sum to the layer"
CACHED = "decoding with the cache = full pass"
PLACE, ONE_HEAD = ["layer 1, head", "position"], ["layer 1, head 1", "position"]
# How a model is broken, a check that fails then, and the place it names.
BROKEN: dict[str, tuple[Callable[[GPT], None], str, list[str]]] = {
    "mask off by one": (
        attending(lambda a, q, k, v: attention(q, k, v, causal(q, k, 1))[0]), TOKEN, PLACE
    ),
    "mask missing": (attending(lambda a, q, k, v: attention(q, k, v)[0]), TOKEN, PLACE),
    "one head unmasked": (attending(one_head_sees_all), TOKEN, ONE_HEAD),
    "one head's gradient": (attending(one_head_sees_all), GRADIENT, ONE_HEAD),
    "gradient from the next": (attending(next_gradient), GRADIENT, ONE_HEAD),
    "wrong scale": (attending(lambda a, q, k, v: sound(q * D**0.5, k, v)), KERNEL, PLACE),
    "beyond rounding": (attending(noisy(5)), KERNEL, PLACE),
    "wrong gradient": (attending(wrong_gradient), "layer = formula, gradient", ["layer 1"]),
    "wrong gradient, heads": (
        attending(wrong_gradient), "layer = one projection per head, gradient", ["layer 1"]
    ),
    "kernels differ": (attending(explicit_alone), "model: fused = explicit kernel", ["logits"]),
    "kernels' gradients": (
        attending(explicit_alone), "model: fused = explicit kernel, gradient", ["weight"]
    ),
    "head 0 left out": (leave_head_out, SUMS, ["layer 1, head 0, position"]),
    "layer without head 0": (leave_head_out, "layer = one projection per head", ["layer 1"]),
    "layer without a mask": (
        attending(lambda a, q, k, v: attention(q, k, v)[0]), "layer = formula", ["layer 1, pos"]
    ),
    "head cut after W_O": (cut_after_output, SUMS, ["layer 1, head 1, position"]),
    "other logits": (later_logits, "last layer of the logit lens = logits", ["position"]),
    "shifted cache": (broken_cache(shift), CACHED, ["layer 1, position", "head"]),
    "shifted in the next window": (broken_cache(shift_later), CACHED, ["layer 1, position 1"]),
}  # fmt: skip


@pytest.mark.parametrize("kind", BROKEN)
def test_broken_models_fail_and_say_where(kind: str) -> None:
    breaks, name, places = BROKEN[kind]
    model = make_model()
    breaks(model)
    failed = failures(model).get(name, [])
    assert [check.dtype for check in failed] == ["float64", "float32"]
    for check in failed:
        assert all(place in check.where for place in places), check.where
        assert check.error is not None and check.error > (check.tolerance or 0)


@pytest.mark.parametrize("kind", ["gradient from the next", "shifted cache"])
def test_a_break_in_one_thing_fails_nothing_else(kind: str) -> None:
    breaks, name, _ = BROKEN[kind]
    model = make_model()
    breaks(model)
    assert {n for n in failures(model) if "gradient" not in n or n == name} == {name}


def test_torch_is_compared_where_it_can_be() -> None:
    for breaks, name in (
        (attending(wrong_gradient), "layer = nn.MultiheadAttention, gradient"),
        (leave_head_out, "layer = nn.MultiheadAttention"),
    ):
        model = make_model(CLASSICAL)
        breaks(model)
        assert len(failures(model)[name]) == 2


def test_a_model_that_ignores_its_input_fails() -> None:
    model = make_model()
    with torch.no_grad():
        model.token_embedding.weight.zero_()
    for check in failures(model)[TOKEN]:
        assert check.where == "token 1 changes no logit" and check.error is None


def test_a_head_that_passes_no_gradient_fails() -> None:
    model = make_model()
    with torch.no_grad():
        next(model.final_norm.parameters()).zero_()
    assert failures(model)[GRADIENT][0].where == "a logit has no gradient at all"


def test_a_not_a_number_fails() -> None:
    model = make_model()
    with torch.no_grad():
        blocks_of(model)[1].mlp.up.weight[0, 0] = float("nan")
    assert "model: fused = explicit kernel" in failures(model)
