"""Sizes by formula are those of what is built; what cannot fit is refused before it is built."""

import dataclasses
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from common.errors import UserError
from model.config import ModelConfig
from model.gpt import GPT, next_token_loss
from training import size
from training.config import TrainConfig
from training.optim import Optimizer
from training.size import (
    activation_bytes,
    check_memory,
    check_training_memory,
    count_parameters,
    decoding_bytes,
    describe_size,
    flops_per_token,
    memory_here,
    skeleton,
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
    positions=st.sampled_from(["learned", "rotary", "none"]),
    norm=st.sampled_from(["layernorm", "rmsnorm"]),
    activation=st.sampled_from(["gelu", "relu2", "swiglu"]),
    ngrams=st.integers(1, 4),
    qk_norm=st.booleans(),
    tie_embeddings=st.booleans(),
    bias=st.booleans(),
    attention=st.sampled_from(["fused", "explicit"]),
)


@given(configs, st.integers(1, 300))
def test_parameters_are_counted_without_a_model(config: ModelConfig, vocab_size: int) -> None:
    model, without = GPT(config, vocab_size), skeleton(config, vocab_size)
    weights = {name: (p.shape, p.dtype) for name, p in model.state_dict().items()}
    assert weights == {name: (p.shape, p.dtype) for name, p in without.state_dict().items()}
    assert all(p.is_meta for p in without.state_dict().values()), "it takes memory"
    assert count_parameters(config, vocab_size) == sum(p.numel() for p in model.parameters())


CHOICES: list[dict[str, Any]] = [
    {},
    {"n_layer": 2, "n_embd": 64, "n_head": 2, "block_size": 256},
    {"activation": "gelu", "bias": True, "positions": "learned", "qk_norm": False},
    {"activation": "swiglu", "norm": "rmsnorm"},
    {"attention": "explicit", "block_size": 64},
    {"dropout": 0.1, "ngrams": 3},
]


@pytest.mark.parametrize("choices", CHOICES, ids=str)
def test_memory_is_what_is_held_after_a_forward_pass(choices: dict[str, Any]) -> None:
    config = ModelConfig(**choices)
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
    half = TrainConfig(batch_size=8, gradient_accumulation_steps=2)
    for train in (half, dataclasses.replace(half, optimizer="adamw")):
        assert activation_bytes(config, train, 65) == pytest.approx(held, rel=0.25)
        states = Optimizer(model, train).state.values()
        state = 8 * model.num_parameters() + sum(t.nbytes for s in states for t in s.values())
        few = config.ngrams == 1  # n-grams' vectors are AdamW's, in Muon's company too
        assert state_bytes(config, train, 65) == pytest.approx(state, rel=0.1 if few else 0.35)
        assert training_bytes(config, train, 65) == (
            state_bytes(config, train, 65) + activation_bytes(config, train, 65)
        )


@pytest.mark.parametrize("choices", CHOICES, ids=str)
def test_flops_are_those_that_pytorch_counts(choices: dict[str, Any]) -> None:
    """Of explicit attention, whose products it sees; fused they are the same ones."""
    config = ModelConfig(**choices | {"attention": "explicit"})
    model, tokens = GPT(config, 65), torch.randint(65, (2, config.block_size + 1))
    with FlopCounterMode(display=False) as counter:
        next_token_loss(model(tokens[:, :-1]), tokens[:, 1:]).backward()
    per_token = counter.get_total_flops() / (2 * config.block_size)
    assert flops_per_token(config, 65) == pytest.approx(per_token, rel=1e-9)


def test_the_sizes_in_words() -> None:
    config = ModelConfig(block_size=32, n_layer=2, n_head=2, n_embd=32)
    train = TrainConfig(batch_size=16, minutes=0.0, max_steps=60, gradient_accumulation_steps=2)
    lines = describe_size(config, train, 70).splitlines()
    blocks, embeddings, small = 2 * 12 * 32**2, 70 * 32, 5 * 32 + 2 * 2 * 16
    assert lines[0] == f"parameters  {blocks + 2 * embeddings + small:,}"
    state, activations = state_bytes(config, train, 70), activation_bytes(config, train, 70)
    assert lines[1].startswith(
        f"memory      about {(state + activations) / 1e6:,.0f} MB: weights, gradients and "
        f"optimizer {state / 1e6:,.0f}, activations {activations / 1e6:,.0f}; "
    )
    step = 16 * 32 * (6 * (blocks + embeddings) + 12 * 2 * 32 * 32)
    assert lines[2] == (
        f"compute     {step / 1e9:,.1f} GFLOP per step of 512 tokens, "
        f"{60 * step / 1e12:,.1f} TFLOP in 60 steps"
    )
    in_time = describe_size(config, dataclasses.replace(train, minutes=1.5), 70)
    assert in_time.endswith(" of 512 tokens, as many steps as fit into --train.minutes 1.5")


def test_decoding_takes_the_weights_and_the_cache() -> None:
    config = ModelConfig(block_size=16, n_layer=3, n_head=2, n_embd=8)
    model = GPT(config, 11).eval()
    cache = model.new_cache()
    with torch.no_grad():
        model(torch.zeros(5, 4, dtype=torch.long), cache)
    buffers = [t.nbytes for layer in cache.layers for t in (layer.k_BHSD, layer.v_BHSD)]
    assert decoding_bytes(config, 5, 11) == 4 * model.num_parameters() + sum(buffers)


def test_what_has_no_room_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    here = memory_here(CPU)
    assert here is not None and 10**8 < here < 10**14
    monkeypatch.setattr(size, "memory_here", lambda device: 3 * 10**9)
    check_memory("it", 3 * 10**9, CPU)
    line = "it would need 4 GB of memory at least, and there are 3 GB here"
    with pytest.raises(UserError, match=f"^{line}$"):
        check_memory("it", 4 * 10**9, CPU)
    room = training_bytes(ModelConfig(), TrainConfig(), 65) * 3 // 4
    monkeypatch.setattr(size, "memory_here", lambda device: room)
    check_training_memory(ModelConfig(), TrainConfig(), 65, CPU)
    monkeypatch.setattr(size, "memory_here", lambda device: room - 1)
    with pytest.raises(UserError, match=r"--model.n_layer 4, --model.n_embd 128, .* would"):
        check_training_memory(ModelConfig(), TrainConfig(), 65, CPU)
    largest = ModelConfig(block_size=10**8)  # and its rotary constants are not computed
    with pytest.raises(UserError, match=r"--model.block_size 100000000 and"):
        check_training_memory(largest, TrainConfig(), 65, CPU)
    monkeypatch.setattr(size, "memory_here", lambda device: None)  # as on Windows
    check_memory("it", 10**30, CPU)
