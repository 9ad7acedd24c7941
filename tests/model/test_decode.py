"""Compiled for decoding, a model gives the same numbers."""

import copy
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from model.config import ModelConfig
from model.decode import CompiledGPT, compiled, optimize_for_decoding
from model.generate import Decoder
from model.gpt import GPT


def make(**fields: object) -> GPT:
    torch.manual_seed(0)
    plain = {"block_size": 24, "n_layer": 2, "n_head": 2, "n_embd": 16, "zero_init": False}
    return GPT(ModelConfig(**plain | fields), 11).eval()  # type: ignore[arg-type]


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


@pytest.mark.parametrize("fields", FIELDS, ids=str)
def test_the_same_numbers(fields: dict[str, object]) -> None:
    if compiled() == "no C compiler (cc)":  # one that fails is no reason
        pytest.skip("no C compiler")
    model = make(**fields)
    for parameter in model.parameters():
        if parameter.dim() == 1:  # scales, which start at one, and biases
            nn.init.uniform_(parameter, 0.5, 1.5)
        else:  # so that each layer weighs as much as the embedding
            nn.init.normal_(parameter, std=0.3)
    optimized = optimize_for_decoding(copy.deepcopy(model))
    assert isinstance(optimized, CompiledGPT)
    decoders = [Decoder(m) for m in (model, optimized)]
    for length in (3, 1, 1, 12, 1, 1, 1, 3, 1, 1, 1):  # past the window, too
        tokens = torch.randint(11, (3, length))
        mine, plain = (decoder.read(tokens) for decoder in reversed(decoders))
        torch.testing.assert_close(mine, plain, rtol=1e-4, atol=1e-5 * float(plain.abs().max()))
    torch.testing.assert_close(optimized(tokens), model(tokens), rtol=1e-4, atol=1e-4)


@pytest.fixture
def without_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """A folder that is all of PATH; nothing is compiled yet."""
    (tmp_path / "decode.c").write_text("not C")
    monkeypatch.setattr("model.decode.__file__", str(tmp_path / "decode.py"))
    monkeypatch.setenv("PATH", str(tmp_path))
    compiled.cache_clear()
    yield tmp_path
    compiled.cache_clear()


def test_without_a_c_compiler_the_model_decodes(without_library: Path) -> None:
    assert compiled() == "no C compiler (cc)"
    model = make()
    assert optimize_for_decoding(model) is model


def test_another_precision_is_not_compiled() -> None:
    model = make().double()
    assert optimize_for_decoding(model) is model


def test_a_compiler_that_fails_is_quoted(without_library: Path) -> None:
    compiler = without_library / "cc"
    compiler.write_text("#!/bin/sh\necho 'what is this?' >&2\nexit 1\n")
    compiler.chmod(0o755)
    assert compiled() == f"{compiler}: what is this?"


def test_another_number_of_sequences_than_the_cache_has_is_refused() -> None:
    if compiled() == "no C compiler (cc)":  # one that fails is no reason
        pytest.skip("no C compiler")
    optimized = optimize_for_decoding(make())
    cache = optimized.new_cache()
    optimized(torch.zeros(2, 3, dtype=torch.long), cache)
    with pytest.raises(ValueError, match="3 sequences, but the cache has 2"):
        optimized(torch.zeros(3, 1, dtype=torch.long), cache)


@pytest.mark.parametrize("activation", ["relu2", "gelu", "gelu_tanh", "swiglu"])
def test_nan_is_not_lost_in_an_activation(activation: str) -> None:
    model = make(activation=activation)
    nn.init.constant_(model.get_submodule("blocks.0.mlp").get_parameter("up.weight"), torch.nan)
    assert optimize_for_decoding(model)(torch.zeros(1, 1, dtype=torch.long)).isnan().all()
