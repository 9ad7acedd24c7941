"""What is captured is what the model computed; what is replaced is only that."""

from dataclasses import replace
from typing import Literal

import pytest
import torch

from lens.capture import attention_weights, blocks_of, capture, head_replaced, without_mask
from model.attention import attention
from model.config import ModelConfig
from tests.lens.models import CLASSICAL, MODERN, make_model, some_tokens


@pytest.mark.parametrize("kernel", ["fused", "explicit"])
@pytest.mark.parametrize("config", [MODERN, CLASSICAL], ids=["modern", "classical"])
def test_a_pass_is_the_models_own(
    config: ModelConfig, kernel: Literal["fused", "explicit"]
) -> None:
    model = make_model(replace(config, attention=kernel))
    tokens = torch.stack((some_tokens(), some_tokens().flip(0)))
    with torch.no_grad():
        logits = model(tokens)
    seen = capture(model, tokens)
    assert torch.equal(seen.logits_BTV, logits)
    assert len(seen.layers) == 2 and len(seen.stream) == 3
    assert torch.equal(model.unembed(seen.stream[-1]), logits)
    for block, layer, before, after in zip(
        blocks_of(model), seen.layers, seen.stream, seen.stream[1:], strict=False
    ):
        assert torch.equal(block.attn_norm(before), layer.x_BTC)
        added = before + layer.output_BTC
        assert torch.allclose(added + block.mlp(block.mlp_norm(added)), after, atol=1e-6)
        weights = layer.weights_BHTS
        assert torch.allclose(weights @ layer.v_BHSD, layer.z_BHTD, atol=1e-5)
        assert torch.allclose(weights.sum(-1), torch.ones(2, 2, 10))
        assert not weights.triu(1).any()


def test_nothing_stays_behind() -> None:
    model = make_model()
    capture(model, some_tokens()[None])
    with attention_weights(model), head_replaced(model, 0, 0, 0.0), without_mask(model):
        pass
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


@pytest.mark.parametrize("head", [0, 1])
def test_a_replaced_head_is_that_head_alone(head: int) -> None:
    model, tokens = make_model(), some_tokens()[None]
    before = capture(model, tokens)
    vector = torch.arange(8.0)
    with head_replaced(model, 1, head, vector):
        after = capture(model, tokens)
    assert torch.equal(after.layers[0].z_BHTD, before.layers[0].z_BHTD)
    assert torch.equal(after.layers[1].q_BHTD, before.layers[1].q_BHTD)
    out, z = blocks_of(model)[1].attn.out, before.layers[1].z_BHTD.clone()
    z[:, head] = vector
    expected = out(z.transpose(1, 2).reshape(1, 10, 16))
    assert torch.allclose(after.layers[1].output_BTC, expected, atol=1e-6)


def test_without_a_mask_the_future_is_seen_and_gradients_flow() -> None:
    model, tokens = make_model(), some_tokens()[None]
    with without_mask(model):
        logits = model(tokens)
        (gradient,) = torch.autograd.grad(logits[0, 0].sum(), model.token_embedding.weight)
    assert not torch.allclose(logits[:, 0], model(tokens)[:, 0])
    read = tokens.unique()
    assert bool(gradient[read].any(dim=1).all())  # the first logit hears of every token


def test_weights_are_collected_layer_by_layer() -> None:
    model, tokens = make_model(), some_tokens()[None]
    with attention_weights(model) as weights:
        model(tokens)
    seen = capture(model, tokens)
    for collected, layer in zip(weights, seen.layers, strict=True):
        assert torch.equal(collected, layer.weights_BHTS)
        expected = attention(layer.q_BHTD, layer.k_BHSD, layer.v_BHSD, layer.mask)[1]
        assert torch.equal(collected, expected)
