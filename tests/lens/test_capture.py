"""Captured activations match the model, and hooks change only what they target."""

from dataclasses import replace
from typing import Literal

import pytest
import torch

from lens.capture import blocks_of, capture, head_replaced, without_mask
from model.config import ModelConfig
from tests.lens.models import CLASSICAL, MODERN, D, H, L, make_model, some_tokens


@pytest.mark.parametrize("kernel", ["fused", "explicit"])
@pytest.mark.parametrize("config", [MODERN, CLASSICAL], ids=["modern", "classical"])
def test_captured_activations_match_the_model(
    config: ModelConfig, kernel: Literal["fused", "explicit"]
) -> None:
    model, tokens = make_model(replace(config, attention=kernel)), some_tokens(4, 10)
    seen = capture(model, tokens)
    assert torch.equal(seen.logits_BTV, model(tokens)) and not seen.logits_BTV.requires_grad
    assert len(seen.layers) == L and len(seen.residual) == L + 1
    assert torch.equal(seen.residual[0], model.embed(tokens))
    assert torch.equal(model.unembed(seen.residual[-1]), seen.logits_BTV)
    later = torch.ones(10, 10).triu(1).bool()
    for i, (block, layer) in enumerate(zip(blocks_of(model), seen.layers, strict=True)):
        assert layer.attn is block.attn
        assert torch.equal(block.attn_norm(seen.residual[i]), layer.x_BTC)
        added = seen.residual[i] + layer.output_BTC
        after = added + block.mlp(block.mlp_norm(added))
        assert torch.allclose(after, seen.residual[i + 1], atol=1e-6)
        scores = torch.einsum("bhtd,bhsd->bhts", layer.q_BHTD, layer.k_BHSD) / D**0.5
        weights = scores.masked_fill(later, -torch.inf).softmax(-1)
        assert torch.allclose(layer.weights_BHTS, weights, atol=1e-6)
        assert torch.allclose(weights @ layer.v_BHSD, layer.z_BHTD, atol=1e-5)


@pytest.mark.parametrize("head", range(H))
def test_head_replaced_changes_only_that_head(head: int) -> None:
    model, tokens, vector = make_model(), some_tokens(2, 10), torch.arange(float(D))
    before = capture(model, tokens)
    with head_replaced(model, 1, head, vector):
        after = capture(model, tokens)
    assert torch.equal(after.residual[1], before.residual[1])
    z = before.layers[1].z_BHTD.clone()
    z[:, head] = vector
    expected = blocks_of(model)[1].attn.out(torch.cat(z.unbind(1), dim=-1))
    assert torch.allclose(after.layers[1].output_BTC, expected, atol=1e-6)


def test_without_mask_attends_everywhere_and_keeps_gradients() -> None:
    model, tokens = make_model(), some_tokens(1, 10)
    with without_mask(model):
        (gradient,) = torch.autograd.grad(model(tokens)[0, 0].sum(), model.token_embedding.weight)
        layer = capture(model, tokens).layers[0]
    assert gradient[tokens.unique()].any(dim=1).all()  # the first logit depends on every token
    assert torch.allclose(layer.output_BTC, layer.attn(layer.x_BTC), atol=1e-5)  # no mask
    modules = [*model.modules()]
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in modules)
