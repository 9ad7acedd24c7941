"""Sizes by formula are those of what is built; what cannot fit is refused before it is."""

import dataclasses

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from errors import UserError
from model.config import ModelConfig
from model.gpt import GPT, next_token_loss
from training.config import TrainConfig
from training.optim import Optimizer
from training.size import (
    count_parameters,
    decoding_bytes,
    memory_here,
    refuse_to_train_too_large,
    refuse_too_large,
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


@given(configs, st.integers(1, 100), st.integers(1, 4), st.sampled_from(["muon", "adamw"]))
def test_training_takes_no_less_than_is_said(
    config: ModelConfig, vocab_size: int, batch_size: int, optimizer: str
) -> None:
    model = GPT(config, vocab_size)
    train = TrainConfig(batch_size=batch_size, optimizer="muon" if optimizer == "muon" else "adamw")
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    tokens = torch.randint(vocab_size, (batch_size, config.block_size + 1))
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        logits = model(tokens[:, :-1])
        next_token_loss(logits, tokens[:, 1:]).backward()
    weights = 2 * 4 * model.num_parameters()  # and their gradients
    states = Optimizer(model, train).state.values()
    weights += sum(tensor.nbytes for state in states for tensor in state.values())
    assert training_bytes(config, train, vocab_size) <= weights + sum(kept.values()) + logits.nbytes


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
        train = TrainConfig(batch_size=value if field == "batch_size" else 1)
        with pytest.raises(UserError, match=f"--(model|train).{field} 10+"):
            refuse_to_train_too_large(config, train, 65, CPU)
