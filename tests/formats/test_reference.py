"""The check that a model computes what its config says. tests/model/test_gpt.py compares the
formulas with the model for all options."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from common.errors import UserError
from configs.config import ModelConfig
from formats.reference import check_reference
from model.attention import causal_mask
from model.gpt import GPT, Block


def make() -> GPT:
    torch.manual_seed(0)
    model = GPT(ModelConfig(block_size=20, n_layer=2, n_head=2, n_embd=16), 30).eval()
    for weight in model.parameters():
        nn.init.normal_(weight, 0.0, 0.3)
    return model


def windowed(block: Block, x_BTC: Tensor, cache: Any = None) -> Tensor:
    T = x_BTC.size(1)
    mask = ~torch.ones(T, T, dtype=torch.bool).tril(-15) & causal_mask(T, T)
    x_BTC = x_BTC + block.attn(block.attn_norm(x_BTC), mask=mask, causal=True, cache=cache)
    return x_BTC + block.mlp(block.mlp_norm(x_BTC))


def post_norm(block: Block, x_BTC: Tensor, cache: Any = None) -> Tensor:
    x_BTC = block.attn_norm(x_BTC + block.attn(x_BTC, causal=True, cache=cache))
    return block.mlp_norm(x_BTC + block.mlp(x_BTC))


@pytest.mark.parametrize("forward", [windowed, post_norm])
def test_changed_forward_pass_is_rejected(monkeypatch: pytest.MonkeyPatch, forward: Any) -> None:
    monkeypatch.setattr(Block, "forward", forward)
    message = r"^the page supports only the model that the config describes: its logits differ by"
    with pytest.raises(UserError, match=message):
        check_reference(make(), "the page")
