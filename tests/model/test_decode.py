"""Optimized for decoding, a model gives the same numbers; rounded to 8 bits, nearly the same."""

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from model.config import ModelConfig
from model.decode import Int8Linear, SplitLinear, optimize_for_decoding
from model.generate import Decoder, generate
from model.gpt import GPT


def make(**fields: object) -> GPT:
    torch.manual_seed(0)
    plain = {"block_size": 12, "n_layer": 2, "n_head": 2, "n_embd": 16, "zero_init": False}
    return GPT(ModelConfig(**plain | fields), 11).eval()  # type: ignore[arg-type]


@given(
    outputs=st.integers(1, 13),
    inputs=st.integers(1, 9),
    shape=st.lists(st.integers(1, 3), min_size=0, max_size=2),
    bias=st.booleans(),
)
def test_split_linear(outputs: int, inputs: int, shape: list[int], bias: bool) -> None:
    torch.manual_seed(outputs)
    linear = nn.Linear(inputs, outputs, bias).double()
    x = torch.randn(*shape, inputs, dtype=torch.float64)
    torch.testing.assert_close(SplitLinear(linear)(x), linear(x))


@pytest.mark.parametrize("inputs", [5, 16, 24])  # the kernel knows multiples of 16 only
@pytest.mark.parametrize("bias", [False, True])
def test_8_bits_are_off_by_half_a_step_at_most(inputs: int, bias: bool) -> None:
    torch.manual_seed(0)
    linear = nn.Linear(inputs, 33, bias)
    nn.init.zeros_(linear.weight[7])
    rounded = Int8Linear(linear)
    step = linear.weight.abs().amax(dim=1, keepdim=True) / 127
    kept = rounded.weight[:, :inputs].float() * rounded.scale.float()[:, None]
    # the scale itself is rounded to bfloat16
    assert ((kept - linear.weight).abs() <= 0.5 * step + linear.weight.abs() / 200).all()
    x = torch.randn(3, 5, inputs)
    torch.testing.assert_close(rounded(x.bfloat16()).float(), linear(x), atol=0.05, rtol=0.05)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"bias": True, "tie_embeddings": True},
        {"activation": "swiglu", "ngrams": 3},
        {"positions": "learned", "qk_norm": False, "activation": "gelu"},
        {"positions": "learned", "norm": "rmsnorm"},
        {"qk_norm": False},
    ],
    ids=str,
)
def test_the_same_numbers(fields: dict[str, object]) -> None:
    model = make(**fields).double()
    for parameter in model.parameters():
        if parameter.dim() == 1:  # scales, which start at one, and biases
            nn.init.uniform_(parameter, 0.5, 1.5)
    optimized = optimize_for_decoding(copy.deepcopy(model))
    assert not any(isinstance(module, nn.Linear) for module in optimized.modules())
    decoders = [Decoder(m) for m in (model, optimized)]
    for length in (3, 1, 1, 5, 1, 1, 1, 1, 1, 1):  # past the window, too
        tokens = torch.randint(11, (2, length))
        torch.testing.assert_close(*(decoder.read(tokens) for decoder in decoders))
    torch.testing.assert_close(optimized(tokens), model(tokens))  # without a cache


def test_8_bits_stay_near_the_model_and_generate_past_the_window() -> None:
    model = make(n_embd=64)
    rounded = optimize_for_decoding(copy.deepcopy(model), int8=True)
    tokens = torch.arange(10)[None]
    with torch.no_grad():
        torch.testing.assert_close(rounded(tokens).float(), model(tokens), atol=0.02, rtol=0.05)
    assert len(list(generate(rounded, tokens, 20))) == 20
