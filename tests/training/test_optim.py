"""What decays, and how fast the learning goes."""

from typing import Literal

import pytest
import torch

from model.config import ModelConfig
from model.gpt import GPT
from training.config import TrainConfig
from training.optim import learning_rate, make_optimizer


def test_only_matrices_decay() -> None:
    model = GPT(ModelConfig(n_embd=16, n_head=2, n_layer=1, qk_norm=True), 5)
    optimizer = make_optimizer(model, TrainConfig(weight_decay=0.3, beta1=0.8, beta2=0.7))
    names = {id(p): name for name, p in model.named_parameters()}
    decayed, kept = ({names[id(p)] for p in group["params"]} for group in optimizer.param_groups)
    assert "blocks.0.mlp.up.weight" in decayed and "token_embedding.weight" in decayed
    assert "blocks.0.mlp.up.bias" in kept and "blocks.0.attn.q_norm.weight" in kept
    assert decayed | kept == set(names.values()) and not decayed & kept
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.3, 0.0]
    assert optimizer.param_groups[0]["betas"] == (0.8, 0.7)


def test_weight_decay_shrinks_a_matrix_without_gradient() -> None:
    model = torch.nn.Linear(3, 3)
    optimizer = make_optimizer(model, TrainConfig(weight_decay=0.5, learning_rate=0.1))
    weight, bias = model.weight.detach().clone(), model.bias.detach().clone()
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    optimizer.step()
    torch.testing.assert_close(model.weight.detach(), weight * 0.95)
    assert torch.equal(model.bias.detach(), bias)


@pytest.mark.parametrize("schedule", ["cosine", "linear", "constant"])
def test_learning_rate(schedule: Literal["cosine", "linear", "constant"]) -> None:
    config = TrainConfig(
        learning_rate=2.0,
        warmup_steps=4,
        max_steps=24,
        schedule=schedule,
        final_lr_fraction=0.1,
    )
    rates = [learning_rate(step, config) for step in range(25)]
    assert rates[:4] == [0.5, 1.0, 1.5, 2.0]
    assert rates[4] == 2.0
    assert rates == sorted(rates[:4]) + sorted(rates[4:], reverse=True)
    assert rates[14] == pytest.approx(2.0 if schedule == "constant" else 1.1)
    assert rates[24] == pytest.approx(2.0 if schedule == "constant" else 0.2)


def test_no_warmup_and_a_run_shorter_than_its_warmup() -> None:
    assert learning_rate(0, TrainConfig(learning_rate=1.0, warmup_steps=0, max_steps=1)) == 1.0
    assert learning_rate(0, TrainConfig(learning_rate=1.0, warmup_steps=10, max_steps=1)) == 0.1
