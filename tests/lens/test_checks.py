"""The proofs hold for sound models, and each fails, naming the place, for a model broken so."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from lens.capture import blocks_of
from lens.checks import Proof, prove
from model.attention import Attend, KVCache, MultiHeadAttention, attention
from model.config import ModelConfig
from model.gpt import GPT
from tests.lens.models import CLASSICAL, MODERN, make_model, some_tokens

KINDS = {
    "modern": MODERN,
    "classical": CLASSICAL,
    "explicit": replace(CLASSICAL, attention="explicit"),
    "ngrams": replace(MODERN, ngrams=3),
    "tied": replace(MODERN, tie_head=True, norm="rmsnorm", activation="swiglu"),
    "one position": replace(MODERN, block_size=2),
}


def of(proofs: list[Proof], verdict: str) -> list[Proof]:
    return [proof for proof in proofs if proof.verdict.startswith(verdict)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("own", [torch.float32, torch.bfloat16], ids=str)
def test_sound_models_pass(kind: str, own: torch.dtype) -> None:
    config = KINDS[kind]
    proofs = prove(make_model(config), some_tokens(min(10, config.block_size)), own)
    assert not of(proofs, "failed")
    classical = config.positions == "learned" and not config.qk_norm
    assert len(of(proofs, "not comparable")) == (0 if classical else 2)
    assert len(of(proofs, "passed")) >= 22


def break_attend(change: Callable[..., Tensor]) -> Callable[[GPT], None]:
    """Replace the kernel of layer 1."""

    class Broken(Attend):
        def forward(self, *args: Any) -> Tensor:
            return change(*args)

    def apply(model: GPT) -> None:
        blocks_of(model)[1].attn.attend.__class__ = Broken

    return apply


def off_by_one(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
    T, S = q.size(-2), k.size(-2)
    allowed = torch.ones(T, S, dtype=torch.bool).tril(S - T + 1)
    return attention(q, k, v, allowed)[0]


def no_mask(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
    return attention(q, k, v)[0]


def one_head_sees_all(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
    T, S = q.size(-2), k.size(-2)
    allowed = torch.ones(2, T, S, dtype=torch.bool)
    allowed[0] = allowed[0].tril(S - T)
    return attention(q, k, v, allowed)[0]


def wrong_scale(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
    T, S = q.size(-2), k.size(-2)
    allowed = torch.ones(T, S, dtype=torch.bool).tril(S - T)
    return attention(q * q.size(-1) ** 0.5, k, v, allowed)[0]


def cut_after_output(model: GPT) -> None:
    """Someone 'removes head 1' of layer 1 by its channels after W_O."""

    class Cut(MultiHeadAttention):
        def forward(self, *args: Any, **kwargs: Any) -> Tensor:
            output = super().forward(*args, **kwargs).clone()
            output[..., 8:] = 0
            return output

    blocks_of(model)[1].attn.__class__ = Cut


PLACE = ["layer 1", "head", "position"]
ONE_HEAD = ["layer 1, head 1", "position"]


def leave_head_out(model: GPT) -> None:
    """The layer adds what its heads say, but for head 0."""

    class Without(MultiHeadAttention):
        def merge_heads(self, z_BHTD: Tensor) -> Tensor:
            z_BHTD = z_BHTD.clone()
            z_BHTD[:, 0] = 0
            return super().merge_heads(z_BHTD)

    blocks_of(model)[1].attn.__class__ = Without


BROKEN = {
    "mask off by one": (break_attend(off_by_one), "changing a token", PLACE),
    "mask missing": (break_attend(no_mask), "changing a token", PLACE),
    "one head unmasked": (break_attend(one_head_sees_all), "changing a token", ONE_HEAD),
    "future's gradient": (break_attend(one_head_sees_all), "no gradient", ONE_HEAD),
    "wrong scale": (break_attend(wrong_scale), "kernel of the run", PLACE),
    "head cut after W_O": (cut_after_output, "heads and bias", ["layer 1", "head 1", "position"]),
    "head 0 left out": (leave_head_out, "heads and bias", ["layer 1, head 0, position"]),
}


@pytest.mark.parametrize("config", [MODERN, CLASSICAL], ids=["modern", "classical"])
@pytest.mark.parametrize("kind", BROKEN)
def test_broken_models_fail_and_say_where(kind: str, config: ModelConfig) -> None:
    breaks, which, places = BROKEN[kind]
    model = make_model(config)
    breaks(model)
    proofs = prove(model, some_tokens(), torch.float32)
    failed = [proof for proof in of(proofs, "failed") if proof.name.startswith(which)]
    assert {proof.dtype for proof in failed} == {"float64", "float32"}
    for proof in failed:
        for place in places:
            assert place in proof.where, proof.where


def test_a_shifted_cache_fails_and_says_where(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_model()

    class Shifted(KVCache):
        def append(self, k_BHTD: Tensor, v_BHTD: Tensor) -> tuple[Tensor, Tensor]:
            k, v = super().append(k_BHTD, v_BHTD)
            if self.length == 3:  # the third key is overwritten by the second
                self.k_BHSD[:, :, 2] = self.k_BHSD[:, :, 1]
            return k, v

    original = GPT.new_cache

    def new_cache(self: GPT, batch_size: int) -> Any:
        cache = original(self, batch_size)
        cache.layers[1].__class__ = Shifted
        return cache

    monkeypatch.setattr(GPT, "new_cache", new_cache)
    proofs = prove(model, some_tokens(), torch.float32)
    failed = of(proofs, "failed")
    assert {proof.name for proof in failed} == {"decoding with the cache = full pass"}
    assert all(proof.where.startswith("layer 1") for proof in failed)
    assert all("head" in proof.where and "position" in proof.where for proof in failed)


def test_rotary_is_never_called_a_pass() -> None:
    proofs = prove(make_model(), some_tokens(), torch.float32)
    (verdict,) = {p.verdict for p in proofs if "nn.MultiheadAttention" in p.name}
    assert verdict == "not comparable: rotary, QK-norm"


def test_a_model_that_ignores_its_input_proves_nothing() -> None:
    model = make_model()
    with torch.no_grad():
        model.token_embedding.weight.zero_()
    proofs = prove(model, some_tokens(), torch.float32)
    inert = [p for p in of(proofs, "failed") if p.name.startswith("changing a token")]
    assert inert and all("moves no logit" in p.where for p in inert)


def test_one_token_is_no_proof() -> None:
    with pytest.raises(ValueError, match="two tokens"):
        prove(make_model(), some_tokens(1), torch.float32)


def test_a_not_a_number_fails() -> None:
    model = make_model()
    with torch.no_grad():
        blocks_of(model)[1].mlp.up.weight[0, 0] = float("nan")
    failed = of(prove(model, some_tokens(), torch.float32), "failed")
    assert "model: fused = explicit kernel" in {proof.name for proof in failed}
