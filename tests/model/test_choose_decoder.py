"""Decoding a changed model: what differs from its forward pass over a whole context is not used."""

from typing import Any

import pytest
import torch
from torch import Tensor

from configs.config import ModelConfig
from model.attention import causal_mask
from model.fast.choose import Recomputed, choose_decoder, decoding_error, optimize_for_decoding
from model.fast.decode import GPTInC
from model.generate import Sampling, generate
from model.gpt import GPT, Block


def make() -> GPT:
    """Return a model large enough that a short comparison would not see its late positions."""
    torch.manual_seed(0)
    config = ModelConfig(block_size=96, n_layer=2, n_head=2, n_embd=32, zero_init=False)
    model = GPT(config, 40).eval()
    for weight in model.parameters():
        torch.nn.init.normal_(weight, 0.0, 0.15)
    return model


def block_with(make_mask: Any) -> Any:
    """Return a `Block.forward` with this mask, made from T queries and S keys."""

    def forward(block: Block, x_BTC: Tensor, cache: Any = None) -> Tensor:
        T = x_BTC.size(1)
        mask = make_mask(T, T + (cache.length if cache else 0))
        x_BTC = x_BTC + block.attn(block.attn_norm(x_BTC), mask=mask, causal=True, cache=cache)
        return x_BTC + block.mlp(block.mlp_norm(x_BTC))

    return forward


def window(T: int, S: int) -> Tensor:
    return causal_mask(T, S) & ~torch.ones(T, S, dtype=torch.bool).tril(S - T - 64)


def greedy(model: GPT, decoder: Any) -> None:
    """Check that a decoder continues as the forward pass does."""
    prompt_BT = torch.arange(90)[None] % 40
    tokens = [int(t) for t in generate(decoder, prompt_BT, 6, Sampling(temperature=0))]
    for token in tokens:
        assert token == int(model(prompt_BT)[0, -1].argmax())
        prompt_BT = torch.cat((prompt_BT, torch.tensor([[token]])), dim=1)


def test_unchanged_model_is_its_own_decoder() -> None:
    model = make()
    assert choose_decoder(model) == (model, None)
    decoder, note = optimize_for_decoding(model)
    assert isinstance(decoder, GPTInC) and note is None


def test_mask_without_the_cached_keys_is_an_error_and_decoding_recomputes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Block, "forward", block_with(lambda T, S: window(T, T)))
    model = make()
    with pytest.raises(ValueError, match=r"^the mask has 1 columns, but there are 96 keys$"):
        decoding_error(model, model)
    decoder, note = optimize_for_decoding(model)
    assert isinstance(decoder, Recomputed)
    assert note and "without a KV cache, and therefore slower: the mask has 1" in note
    greedy(model, decoder)
