"""Sizes by formula are those of what is built; what cannot fit is refused before it is."""

import dataclasses
import re
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from common.errors import UserError
from model.config import ModelConfig
from model.gpt import GPT, next_token_loss
from train import main as train_main
from training.config import TrainConfig
from training.optim import Optimizer
from training.size import (
    activation_bytes,
    count_parameters,
    decoding_bytes,
    flops_per_token,
    memory_here,
    refuse_to_train_too_large,
    refuse_too_large,
    state_bytes,
    training_bytes,
)

CPU = torch.device("cpu")
configs = st.builds(
    ModelConfig,
    block_size=st.integers(1, 20),
    n_layer=st.integers(1, 3),
    n_head=st.sampled_from([1, 2]),
    n_embd=st.sampled_from([8, 12, 32]),
    positions=st.sampled_from(["learned", "rotary"]),
    norm=st.sampled_from(["layernorm", "rmsnorm"]),
    activation=st.sampled_from(["gelu", "relu2", "swiglu"]),
    ngrams=st.integers(1, 4),
    qk_norm=st.booleans(),
    tie_head=st.booleans(),
    bias=st.booleans(),
    attention=st.sampled_from(["fused", "explicit"]),
)


@given(configs, st.integers(1, 300))
def test_parameters_are_counted_without_a_model(config: ModelConfig, vocab_size: int) -> None:
    with torch.device("meta"):
        model = GPT(config, vocab_size)
    assert count_parameters(config, vocab_size) == model.num_parameters()


CHOICES: list[dict[str, Any]] = [
    {},
    {"n_layer": 2, "n_embd": 64, "n_head": 2},
    {"block_size": 256, "n_embd": 256},
    {"activation": "gelu", "bias": True, "positions": "learned", "qk_norm": False},
    {"activation": "swiglu", "norm": "rmsnorm"},
    {"attention": "explicit", "block_size": 64},
    {"dropout": 0.1, "ngrams": 3},
]


@pytest.mark.parametrize("choices", CHOICES, ids=str)
@pytest.mark.parametrize("optimizer", ["muon", "adamw"])
def test_memory_is_what_is_held_after_a_forward_pass(
    choices: dict[str, Any], optimizer: Literal["muon", "adamw"]
) -> None:
    config = ModelConfig(**choices)
    train = TrainConfig(batch_size=8, grad_accum_steps=2, optimizer=optimizer)
    model = GPT(config, 65)
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        if tensor.untyped_storage().data_ptr() not in weights:
            kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    tokens = torch.randint(65, (4, config.block_size + 1))
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        next_token_loss(model(tokens[:, :-1]), tokens[:, 1:])
    held = sum(tensor.untyped_storage().nbytes() for tensor in kept.values())
    assert activation_bytes(config, train, 65) == pytest.approx(held, rel=0.25)
    states = Optimizer(model, train).state.values()
    state = 8 * model.num_parameters() + sum(t.nbytes for s in states for t in s.values())
    few = config.ngrams == 1  # n-grams' vectors are AdamW's, in Muon's company too
    assert state_bytes(config, train, 65) == pytest.approx(state, rel=0.1 if few else 0.35)
    assert training_bytes(config, train, 65) == (
        state_bytes(config, train, 65) + activation_bytes(config, train, 65)
    )


@pytest.mark.parametrize("choices", CHOICES, ids=str)
def test_operations_are_those_that_pytorch_counts(choices: dict[str, Any]) -> None:
    """Of explicit attention, whose products it sees; fused they are the same ones."""
    config = ModelConfig(**choices | {"attention": "explicit"})
    model, tokens = GPT(config, 65), torch.randint(65, (2, config.block_size + 1))
    with FlopCounterMode(display=False) as counter:
        next_token_loss(model(tokens[:, :-1]), tokens[:, 1:]).backward()
    per_token = counter.get_total_flops() / (2 * config.block_size)
    assert flops_per_token(config, 65) == pytest.approx(per_token, rel=1e-9)


def test_a_dry_run_says_it_and_leaves_nothing(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    debug = Path(__file__).parent.parent.parent / "configs" / "debug.yaml"
    assert train_main([str(debug), "--dry_run"]) == 0
    lines = capsys.readouterr().out.splitlines()[-3:]
    assert lines[0] == "parameters  31,392"
    assert re.match(r"memory      about \d MB: weights, gradients and optimizer 0, act", lines[1])
    assert re.match(r"operations  0\.\d GFLOP a step of 512 tokens, 0\.\d TFLOP in 60", lines[2])
    assert not (workplace / "runs").exists()


def test_decoding_takes_the_weights_and_the_cache() -> None:
    config = ModelConfig(block_size=16, n_layer=3, n_head=2, n_embd=8)
    model = GPT(config, 11)
    cache = [t.nbytes for layer in model.new_cache(5).layers for t in (layer.k_BHSD, layer.v_BHSD)]
    assert decoding_bytes(config, 5, 11) == 4 * model.num_parameters() + sum(cache)


def test_what_has_no_room_is_refused_by_its_settings() -> None:
    here = memory_here(CPU)
    assert here is not None and 10**8 < here < 10**14
    refuse_too_large(here, CPU, {})
    with pytest.raises(UserError, match=r"--a 5, --b 6 need at least [\d,]+ GB, and there are"):
        refuse_too_large(here + 1, CPU, {"a": 5, "b": 6})
    refuse_to_train_too_large(ModelConfig(), TrainConfig(), 65, CPU)


ABSURD = [10**12, 10**400]


@pytest.mark.parametrize("value", ABSURD)
def test_any_absurd_size_is_named(value: int) -> None:
    one = ModelConfig(n_head=1)
    configs = {
        "n_layer": dataclasses.replace(one, n_layer=value),
        "n_embd": dataclasses.replace(one, n_embd=value),
        "block_size": dataclasses.replace(one, block_size=value),
        "batch_size": one,
    }
    for field, config in configs.items():
        train = TrainConfig(batch_size=min(value, 2**62) if field == "batch_size" else 1)
        with pytest.raises(UserError, match=f"--(model|train).{field} (10+|4611)"):
            refuse_to_train_too_large(config, train, 65, CPU)
