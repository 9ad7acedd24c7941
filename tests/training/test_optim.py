"""Muon matches its formula, and AdamW matches PyTorch; defaults and schedules."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from configs.config import Config, ModelConfig, TrainConfig
from model.gpt import GPT
from training.optim import get_lr_scale, make_optimizer, regularization

SMALL = ModelConfig(block_size=6, n_layer=2, n_head=2, n_embd=8, bias=True, ngrams=2)


def make() -> GPT:
    torch.manual_seed(0)
    return GPT(SMALL, 7)


def give_gradients(model: nn.Module, seed: int) -> None:
    """Set random gradients that depend only on the seed."""
    generator = torch.Generator().manual_seed(seed)
    for p in model.parameters():
        p.grad = torch.randn(p.shape, generator=generator)


# --- a step --------------------------------------------------------------------------------------


def muon_step(gradient: Tensor, momentum: Tensor, beta: float) -> tuple[Tensor, Tensor]:
    """Return Muon's step for one matrix, at a learning rate of 1, and its new momentum."""
    momentum = beta * momentum + (1 - beta) * gradient
    X = (1 - beta) * gradient + beta * momentum
    X = X / X.square().sum().sqrt()
    for _ in range(5):
        XX = X @ X.T
        X = 3.4445 * X - 4.7750 * XX @ X + 2.0315 * XX @ XX @ X
    rows, columns = X.shape
    return X * (math.sqrt(rows / columns) if rows > columns else 1.0), momentum


def test_bfloat16_muon_is_close_and_keeps_float32_weights() -> None:
    results, name = [], "blocks.0.mlp.up.weight"
    for precision in (torch.float32, torch.bfloat16):
        model = make()
        optimizer = make_optimizer(model, TrainConfig(muon_learning_rate=0.1), precision)
        weight = model.get_parameter(name)
        before = weight.detach().clone()
        give_gradients(model, 0)
        optimizer.step(1.0, 0.1)
        assert weight.dtype == optimizer.state[name]["momentum"].dtype == torch.float32
        results.append((weight - before).detach().flatten())
    exact, low = results
    assert not torch.equal(exact, low)
    assert torch.cosine_similarity(exact, low, dim=0) > 0.999


ADAMW = TrainConfig(
    optimizer="adamw",
    learning_rate=0.03,
    weight_decay=0.4,
    ngram_decay=0.0,  # not omitted
    beta2=0.95,
)
HEIGHTS = {0: 0.5, 1: 1.0, 9: 0.2}  # of the learning rate at some steps


@pytest.mark.parametrize(
    ("config", "rate", "beta2", "decay", "ngram_decay"),
    [(TrainConfig(), 1e-2, 0.99, 0.1, 0.1), (ADAMW, 0.03, 0.95, 0.4, 0.0)],
    ids=["the measured defaults", "adamw"],
)
@torch.no_grad()
def test_steps_match_adamw_of_pytorch_and_the_formula_of_muon(
    config: TrainConfig, rate: float, beta2: float, decay: float, ngram_decay: float
) -> None:
    config = replace(config, max_steps=10, warmup_steps=2, decay_fraction=0.5)
    actual, expected = make(), make()
    for p, q in zip(actual.parameters(), expected.parameters(), strict=True):
        q.copy_(p.normal_(std=0.6))  # large, so that their decay shows
    optimizer = make_optimizer(actual, config)
    groups, momenta = list[dict[str, Any]](), dict[str, Tensor]()
    for name, p in expected.named_parameters():
        own = ngram_decay if "ngram" in name else decay if p.dim() == 2 else 0.0
        if config.optimizer == "muon" and name.startswith("blocks.") and p.dim() == 2:
            momenta[name] = torch.zeros_like(p)
        else:
            groups.append({"params": p, "weight_decay": own})
    reference = torch.optim.AdamW(groups, betas=(0.9, beta2))
    for step, lr_scale in HEIGHTS.items():
        for model in (actual, expected):
            give_gradients(model, step)
        for group in reference.param_groups:
            group["lr"] = rate * lr_scale
        optimizer.step(lr_scale, decay)
        reference.step()
        for name, p in expected.named_parameters():
            if name in momenta and p.grad is not None:
                update, momenta[name] = muon_step(p.grad, momenta[name], 0.95)
                p.mul_(1 - 0.012 * lr_scale * decay).sub_(0.012 * lr_scale * update)
            atol = 2e-4 if name in momenta else 1e-6  # of Newton-Schulz
            own_p = actual.get_parameter(name)
            torch.testing.assert_close(own_p, p, rtol=1e-5, atol=atol, msg=name)


# --- the schedule --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schedule", "falling"),
    [("linear", 0.75), ("cosine", (1 + math.sqrt(0.5)) / 2), ("constant", 1.0)],
)
def test_lr_schedule_warms_up_then_follows_its_curve(schedule: Any, falling: float) -> None:
    """Warmup lasts 4 steps. Decay begins at step 20, so step 25 is a quarter of the way through."""
    config = TrainConfig(max_steps=40, warmup_steps=4, schedule=schedule, decay_fraction=0.5)
    heights = [get_lr_scale(step, config) for step in (0, 2, 3, 4, 20, 25, 40)]
    end = 1.0 if schedule == "constant" else 0.0
    assert heights == pytest.approx([0.25, 0.75, 1, 1, 1, falling, end])
    short = TrainConfig(max_steps=4, warmup_steps=4, schedule=schedule, decay_fraction=1.0)
    assert [get_lr_scale(step, short) for step in (3, 4)] == [1, 1]  # warmup takes precedence


# --- regularization ------------------------------------------------------------------------------


def test_regularization_rises_with_each_doubling_of_the_passes() -> None:
    """A model with four times the weights in its blocks begins after a quarter of the passes, and a
    text of a quarter of the manual after half of them."""
    omitted = Config(model=ModelConfig(block_size=8))
    given = replace(
        omitted,
        model=replace(omitted.model, dropout=0.3),
        train=replace(omitted.train, weight_decay=0.0),
    )
    larger = replace(omitted.model, n_layer=16)
    default, large = (dict(GPT(model, 7).named_parameters()) for model in (omitted.model, larger))
    rising = [(0, 0, 0.1), (3, 0, 0.1), (6, 0.07, 0.25), (12, 0.14, 0.4), (3 * 2**8, 0.5, 1.3)]
    for passes, dropout, decay in rising:
        for weights, times, tokens in (
            (default, passes, 418_543),
            (large, passes / 4, 418_543),
            (default, passes / 2, 418_543 // 4),
        ):
            rates = regularization(weights, times, tokens, omitted)
            assert rates == pytest.approx((dropout, decay), abs=1e-3)
            assert regularization(weights, times, tokens, given) == (0.3, 0)
    small = dict(GPT(SMALL, 7).named_parameters())
    assert regularization(small, 100, 418_543, omitted) == (0, 0.1)
    assert regularization(default, 0, 0, omitted) == (0, 0.1)
