"""The model as formulas on its weights, and the check that a model computes them."""

import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from common.errors import UserError
from configs.config import ModelConfig
from formats.reference import check_reference, reference_logits
from model.attention import causal_mask
from model.compare import largest_error
from model.gpt import GPT, Block

SIZE: dict[str, Any] = {"block_size": 20, "n_layer": 2, "n_head": 2, "n_embd": 16}
CONFIGS: list[dict[str, Any]] = [
    {},
    {"positions": "learned", "qk_norm": False, "bias": True, "tie_embeddings": True},
    {"positions": "none", "ngrams": 4, "head_bias": True, "activation": "gelu_tanh"},
]


def make(**choices: Any) -> GPT:
    torch.manual_seed(0)
    model = GPT(ModelConfig(**SIZE, **choices), 30).eval()
    for weight in model.parameters():
        nn.init.normal_(weight, 0.0, 0.3)
    return model


@pytest.mark.parametrize("choices", CONFIGS)
def test_plain_formulas_give_the_model(choices: dict[str, Any]) -> None:
    model, tokens_T = make(**choices), torch.arange(20) * 7 % 30
    with torch.no_grad():
        want = model(tokens_T[None])[0]
    assert largest_error(reference_logits(model.state_dict(), model.config, tokens_T), want) < 1e-5
    check_reference(model, "it")


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


def test_changed_modules_are_rejected() -> None:
    for change in ("mlp.up", "attn_norm"):
        model = make()
        model.set_submodule(f"blocks.1.{change}", nn.Identity())
        name = re.escape(f"blocks.1.{change}.weight")
        with pytest.raises(UserError, match=f"KeyError: '{name}'"):
            check_reference(model, "it")
    model = make()
    model.get_submodule("blocks.0.mlp").register_module("gate", nn.Linear(16, 64, bias=False))
    with pytest.raises(UserError, match=r"blocks.0.mlp.gate.weight"):
        check_reference(model, "it")
