"""Passes with one change: it affects only what it targets. test_trace.py tests the activations."""

import pytest
import torch

from lens.capture import blocks_of, capture, head_replaced, without_mask
from tests.lens.models import D, H, make_model, some_tokens


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
