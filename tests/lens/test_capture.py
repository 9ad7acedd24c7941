"""A pass without the mask. Activations are tested in test_trace.py, ablation in test_measure.py."""

import torch

from lens.capture import capture, without_mask
from tests.lens.models import make_model, some_tokens


def test_without_mask_attends_everywhere_and_keeps_gradients() -> None:
    model, tokens = make_model(), some_tokens(1, 10)
    with without_mask(model):
        (gradient,) = torch.autograd.grad(model(tokens)[0, 0].sum(), model.token_embedding.weight)
        layer = capture(model, tokens).layers[0]
    assert gradient[tokens.unique()].any(dim=1).all()  # the first logit depends on every token
    assert torch.allclose(layer.output_BTC, layer.attn(layer.x_BTC), atol=1e-5)  # no mask
    modules = [*model.modules()]
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in modules)
