"""Optimized for decoding, a model gives the same numbers; rounded to 8 bits, nearly the same."""

import copy

import pytest
import torch
from torch import nn

from model.config import ModelConfig
from model.decode import CompiledBlock, Int8Linear, compiled, optimize_for_decoding
from model.generate import Decoder, generate
from model.gpt import GPT


def make(**fields: object) -> GPT:
    torch.manual_seed(0)
    plain = {"block_size": 12, "n_layer": 2, "n_head": 2, "n_embd": 16, "zero_init": False}
    return GPT(ModelConfig(**plain | fields), 11).eval()  # type: ignore[arg-type]


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


FIELDS: list[dict[str, object]] = [
    {},
    {"bias": True, "tie_embeddings": True},
    {"activation": "swiglu", "ngrams": 3},
    {"positions": "learned", "qk_norm": False, "activation": "gelu"},
    {"positions": "learned", "norm": "rmsnorm"},
    {"qk_norm": False, "activation": "gelu_tanh"},
    {"positions": "none", "n_embd": 14},  # heads of an odd width, and no multiple of 4 outputs
    {"n_embd": 72},  # more than a vector, and some
]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["in PyTorch", "in C"])
@pytest.mark.parametrize("fields", FIELDS, ids=str)
def test_the_same_numbers(fields: dict[str, object], dtype: torch.dtype) -> None:
    if dtype == torch.float32 and compiled() is None:
        pytest.skip("no C compiler")
    model = make(**fields).to(dtype)
    for parameter in model.parameters():
        if parameter.dim() == 1:  # scales, which start at one, and biases
            nn.init.uniform_(parameter, 0.5, 1.5)
        else:  # so that each layer weighs as much as the embedding
            nn.init.normal_(parameter, std=0.3)
    optimized = optimize_for_decoding(copy.deepcopy(model))
    in_c = [isinstance(block, CompiledBlock) for block in optimized.blocks]
    assert in_c == [dtype == torch.float32] * 2
    decoders = [Decoder(m) for m in (model, optimized)]
    for length in (3, 1, 1, 5, 1, 1, 1, 1, 1, 1):  # past the window, too
        tokens = torch.randint(11, (3, length))
        mine, plain = (decoder.read(tokens) for decoder in reversed(decoders))
        torch.testing.assert_close(mine, plain, rtol=1e-4, atol=1e-5 * float(plain.abs().max()))
    torch.testing.assert_close(optimized(tokens), model(tokens), rtol=1e-4, atol=1e-4)


def test_without_a_c_compiler_pytorch_decodes(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled.cache_clear()
    monkeypatch.setattr("shutil.which", lambda name: None)
    try:
        optimized = optimize_for_decoding(make())
    finally:
        compiled.cache_clear()
    assert not any(isinstance(block, CompiledBlock) for block in optimized.blocks)
    assert len(list(generate(optimized, torch.zeros(1, 1, dtype=torch.long), 3))) == 3


def test_8_bits_stay_near_the_model_and_generate_past_the_window() -> None:
    model = make(n_embd=64)
    rounded = optimize_for_decoding(copy.deepcopy(model), int8=True)
    tokens = torch.arange(10)[None]
    with torch.no_grad():
        torch.testing.assert_close(rounded(tokens).float(), model(tokens), atol=0.02, rtol=0.05)
    assert len(list(generate(rounded, tokens, 20))) == 20
