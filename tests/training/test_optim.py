"""Muon against its formula, AdamW against PyTorch's, which weight is whose, and the schedule."""

import math
import subprocess
import sys
from pathlib import Path
from typing import Literal

import pytest
import torch
from hypothesis import assume, example, given
from hypothesis import strategies as st
from torch import Tensor, nn

from model.config import ModelConfig
from model.gpt import GPT
from training.config import TrainConfig
from training.optim import Optimizer, orthogonalize, schedule

ROOT = Path(__file__).parent.parent.parent
TYPES = [torch.float32, torch.bfloat16]
SCHEDULES: list[Literal["cosine", "linear", "constant"]] = ["cosine", "linear", "constant"]


def make() -> GPT:
    torch.manual_seed(0)
    small = ModelConfig(
        block_size=6, n_layer=2, n_head=2, n_embd=8, bias=True, qk_norm=True, ngrams=2
    )
    return GPT(small, 7)


def give_gradients(model: nn.Module, seed: int) -> dict[str, Tensor]:
    """The same at each call with the same seed."""
    generator = torch.Generator().manual_seed(seed)
    for p in model.parameters():
        p.grad = torch.randn(p.shape, generator=generator)
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


# --- orthogonalisation ---------------------------------------------------------------------------

sizes = st.integers(1, 24)


def matrix(rows: int, columns: int, spread: float, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """U, V and U S V^T, whose singular values are between 1 and `spread`."""
    generator = torch.Generator().manual_seed(seed)
    rank = min(rows, columns)

    def directions(n: int) -> Tensor:
        return torch.linalg.qr(torch.randn(n, rank, generator=generator, dtype=torch.float64)).Q

    U, V = directions(rows), directions(columns)
    S = 1 + (spread - 1) * torch.rand(rank, generator=generator, dtype=torch.float64)
    S[0], S[-1] = spread, 1
    return U, V, U * S @ V.mT


@pytest.mark.parametrize(
    ("dtype", "spread", "slack"), [(torch.float32, 100, 1e-3), (torch.bfloat16, 8, 0.1)]
)
@given(sizes, sizes, st.floats(0, 1), st.floats(1e-3, 1e3), st.integers(0, 99))
@example(24, 24, 1.0, 1.0, 0)
def test_orthogonalize_keeps_directions_and_evens_out_their_lengths(
    dtype: torch.dtype,
    spread: float,
    slack: float,
    rows: int,
    columns: int,
    share: float,
    scale: float,
    seed: int,
) -> None:
    U, V, given_ = matrix(rows, columns, spread**share, seed)
    result = orthogonalize((scale * given_).to(dtype)[None])
    assert result.dtype == dtype and result.shape == (1, rows, columns)
    even = result[0].double()
    values = torch.linalg.svdvals(even)
    assert values.min() > 0.6 and values.max() < 1.3
    in_their_directions = U.mT @ even @ V
    across = in_their_directions - in_their_directions.diagonal().diag()
    assert across.abs().max() < slack, "one direction was mixed into another"
    assert torch.cosine_similarity(even.flatten(), (U @ V.mT).flatten(), dim=0) > 0.95


@pytest.mark.parametrize("shape", [(20, 6), (6, 20), (12, 12)], ids=str)
@pytest.mark.parametrize("dtype", TYPES)
def test_orthogonalize_agrees_with_the_singular_value_decomposition(
    dtype: torch.dtype, shape: tuple[int, int]
) -> None:
    gradients = torch.randn(3, *shape, generator=torch.Generator().manual_seed(0))
    U, _, Vh = torch.linalg.svd(gradients, full_matrices=False)
    result = orthogonalize(gradients.to(dtype)).float()
    alike = torch.cosine_similarity(result.flatten(1), (U @ Vh).flatten(1))
    assert (alike > 0.95).all(), alike


@pytest.mark.parametrize("shape", [(20, 6), (6, 20), (12, 12)], ids=str)
def test_matrices_of_a_batch_do_not_meet(shape: tuple[int, int]) -> None:
    matrices = torch.randn(3, *shape) * torch.tensor([1e-3, 1.0, 1e3])[:, None, None]
    alone = torch.cat([orthogonalize(m[None]) for m in matrices])
    torch.testing.assert_close(orthogonalize(matrices), alone, rtol=0, atol=1e-5)


def test_no_direction_is_made_of_nothing() -> None:
    assert torch.equal(orthogonalize(torch.zeros(2, 3, 4)), torch.zeros(2, 3, 4))


# --- which weight is whose -----------------------------------------------------------------------


def test_each_weight_has_one_optimizer() -> None:
    model = make()
    hidden = {
        f"blocks.{layer}.{name}.weight"
        for layer in (0, 1)
        for name in ("attn.query", "attn.key", "attn.value", "attn.out", "mlp.up", "mlp.down")
    }
    expected: list[tuple[Literal["muon", "adamw"], set[str]]] = [("muon", hidden), ("adamw", set())]
    for kind, by_muon in expected:
        optimizer = Optimizer(model, TrainConfig(optimizer=kind))
        muon = [name for names in optimizer.muon.values() for name in names]
        adamw = [name for names in optimizer.adamw.values() for name in names]
        assert set(muon) == by_muon
        assert sorted(muon + adamw) == sorted(name for name, _ in model.named_parameters())
        for name in muon:
            assert optimizer.state[name].keys() == {"momentum"}
        for name in adamw:
            assert optimizer.state[name].keys() == {"step", "exp_avg", "exp_avg_sq"}


def test_each_optimizer_goes_at_its_own_rate() -> None:
    fast: list[dict[str, float]] = [{"learning_rate": 0.0}, {"muon_learning_rate": 0.0}]
    for rates, still in zip(fast, ("adamw", "muon"), strict=True):
        model = make()
        optimizer = Optimizer(model, TrainConfig(**rates))  # type: ignore[arg-type]
        before = weights_of(model)
        give_gradients(model, 0)
        optimizer.step(1.0)
        groups = optimizer.adamw if still == "adamw" else optimizer.muon
        kept = {name for names in groups.values() for name in names}
        for name, p in model.named_parameters():
            assert torch.equal(p, before[name]) == (name in kept), name


@pytest.mark.parametrize("kind", ["muon", "adamw"])
def test_only_matrices_decay(kind: Literal["muon", "adamw"]) -> None:
    model = make()
    for p in model.parameters():
        nn.init.normal_(p)
        p.grad = torch.zeros_like(p)
    config = TrainConfig(
        optimizer=kind, weight_decay=0.5, learning_rate=0.1, muon_learning_rate=0.2
    )
    before = weights_of(model)
    Optimizer(model, config).step(0.5)
    for name, p in model.named_parameters():
        hidden = kind == "muon" and name.startswith("blocks.")
        share = 1 - 0.5 * (0.2 if hidden else 0.1) * 0.5 if p.dim() == 2 else 1.0
        torch.testing.assert_close(p.detach(), share * before[name], msg=name)


# --- a step --------------------------------------------------------------------------------------


def test_muon_is_its_formula() -> None:
    """Two steps, written out for one matrix at a time; 20 x 5 is tall, so its steps are longer."""
    torch.manual_seed(0)
    model = nn.Module()
    model.blocks = nn.ModuleList([nn.Linear(5, 20, bias=False), nn.Linear(20, 5, bias=False)])
    config = TrainConfig(muon_learning_rate=0.3, muon_momentum=0.9, weight_decay=0.2)
    optimizer = Optimizer(model, config)
    expected = weights_of(model)
    memory = {name: torch.zeros_like(weight) for name, weight in expected.items()}
    for step, share in enumerate((0.5, 1.0)):
        for name, gradient in give_gradients(model, step).items():
            memory[name] = 0.9 * memory[name] + 0.1 * gradient
            X = 0.1 * gradient + 0.9 * memory[name]
            X = X / X.square().sum().sqrt()
            for _ in range(5):
                XX = X @ X.T
                X = 3.4445 * X - 4.7750 * XX @ X + 2.0315 * XX @ XX @ X
            rate, (rows, columns) = 0.3 * share, X.shape
            longer = math.sqrt(rows / columns) if rows > columns else 1.0
            expected[name] = (1 - rate * 0.2) * expected[name] - rate * longer * X
        optimizer.step(share)
        for name, p in model.named_parameters():
            torch.testing.assert_close(p.detach(), expected[name], rtol=0, atol=1e-5)
            torch.testing.assert_close(optimizer.state[name]["momentum"], memory[name])


def test_muon_in_bfloat16_is_close_and_its_weights_and_memory_are_float32() -> None:
    results = []
    for precision in TYPES:
        model = make()
        optimizer = Optimizer(model, TrainConfig(muon_learning_rate=0.1), precision)
        before = weights_of(model)
        give_gradients(model, 0)
        optimizer.step(1.0)
        name = "blocks.0.mlp.up.weight"
        weight = model.get_parameter(name)
        assert weight.dtype == optimizer.state[name]["momentum"].dtype == torch.float32
        results.append((weight - before[name]).detach().flatten())
    exact, low = results
    assert not torch.equal(exact, low), "bfloat16 was asked for"
    assert torch.cosine_similarity(exact, low, dim=0) > 0.999


def test_adamw_is_that_of_pytorch() -> None:
    ours, theirs = make(), make()
    config = TrainConfig(
        optimizer="adamw", learning_rate=0.03, weight_decay=0.4, beta1=0.8, beta2=0.95
    )
    optimizer = Optimizer(ours, config)
    matrices = [p for p in theirs.parameters() if p.dim() == 2]
    rest = [p for p in theirs.parameters() if p.dim() != 2]
    reference = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.4}, {"params": rest, "weight_decay": 0.0}],
        betas=(0.8, 0.95),
    )
    for step, share in enumerate((0.5, 1.0, 1.0, 0.1)):
        give_gradients(ours, step)
        give_gradients(theirs, step)
        for group in reference.param_groups:
            group["lr"] = 0.03 * share
        optimizer.step(share)
        reference.step()
        for (name, p), q in zip(ours.named_parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-6, msg=name)
            assert optimizer.state[name].keys() == reference.state[q].keys()
            for key, value in reference.state[q].items():
                torch.testing.assert_close(optimizer.state[name][key], value, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("kind", ["muon", "adamw"])
def test_both_go_down_a_valley(kind: Literal["muon", "adamw"]) -> None:
    torch.manual_seed(0)
    model = nn.Module()
    model.blocks = nn.ModuleList([nn.Linear(6, 6)])
    layer = model.blocks[0]
    goal = torch.randn(6, 6)
    config = TrainConfig(
        optimizer=kind, learning_rate=0.2, muon_learning_rate=0.2, weight_decay=0.0
    )
    optimizer = Optimizer(model, config)
    losses = []
    for step in range(60):
        loss = (layer(torch.eye(6)) - goal).square().mean()
        loss.backward()
        optimizer.step(1 - step / 60)
        model.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < 0.05 * losses[0]


@pytest.mark.parametrize("name", ["blocks.1.mlp.up.weight", "blocks.1.mlp.up.bias"])
def test_a_weight_without_a_gradient_is_named(name: str) -> None:
    model = make()
    give_gradients(model, 0)
    model.get_parameter(name).grad = None
    with pytest.raises(ValueError, match=f"{name} has no gradient"):
        Optimizer(model, TrainConfig()).step(1.0)


PROGRAM = """
import sys
import torch
from model.config import ModelConfig
from model.gpt import GPT
from train import train_step
from training.config import TrainConfig
from training.optim import Optimizer
from training.runtime import Runtime

for kind in ("muon", "adamw"):
    for precision in (torch.float32, torch.bfloat16):
        config = TrainConfig(optimizer=kind)
        model = GPT(ModelConfig(block_size=8, n_layer=1, n_head=2, n_embd=8), 5)
        forward = Runtime(torch.device("cpu"), precision, 1).forward_of(model)
        windows = torch.zeros(2, 9, dtype=torch.long)
        train_step(forward, model, Optimizer(model, config, precision), 1.0, windows, config)
print(*[name for name in sys.modules if name.startswith(("torch._dynamo", "torch._inductor"))])
"""


def test_a_step_does_not_import_the_compiler() -> None:
    """It takes longer to import than a small model takes for a hundred steps."""
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert result.stdout.split() == []


# --- the schedule --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", SCHEDULES)
def test_schedule(kind: Literal["cosine", "linear", "constant"]) -> None:
    config = TrainConfig(
        warmup_steps=4, max_steps=40, schedule=kind, decay_fraction=0.5, final_lr_fraction=0.2
    )
    shares = [schedule(step, config) for step in range(41)]
    assert shares[:4] == [0.25, 0.5, 0.75, 1.0]
    assert shares[4:21] == [1.0] * 17, "the plateau"
    if kind == "constant":
        assert shares[21:] == [1.0] * 20
        return
    assert shares[20:] == sorted(set(shares[20:]), reverse=True), "it falls with every step"
    quarter = {"linear": 0.8, "cosine": 0.2 + 0.8 * (1 + math.sqrt(0.5)) / 2}[kind]
    assert shares[25] == pytest.approx(quarter)
    assert shares[30] == pytest.approx(0.6), "half way"
    assert shares[40] == pytest.approx(0.2)


def test_the_decay_may_take_all_of_the_run_or_none() -> None:
    whole = TrainConfig(warmup_steps=10, max_steps=50, schedule="linear", decay_fraction=1.0)
    assert [schedule(step, whole) for step in (9, 10, 30, 50)] == pytest.approx([1, 1, 0.5, 0])
    none = TrainConfig(warmup_steps=0, max_steps=50, schedule="linear", decay_fraction=0.0)
    assert [schedule(step, none) for step in range(50)] == [1.0] * 50


@given(
    st.integers(1, 60),
    st.integers(0, 80),
    st.floats(0, 1),
    st.floats(0, 1),
    st.sampled_from(SCHEDULES),
    st.integers(0, 60),
)
def test_no_step_leaves_the_range_and_after_the_warmup_none_rises(
    max_steps: int,
    warmup_steps: int,
    decay_fraction: float,
    final: float,
    kind: Literal["cosine", "linear", "constant"],
    step: int,
) -> None:
    assume(step < max_steps)
    config = TrainConfig(
        max_steps=max_steps,
        warmup_steps=warmup_steps,
        decay_fraction=decay_fraction,
        final_lr_fraction=final,
        schedule=kind,
    )
    share, after = schedule(step, config), schedule(step + 1, config)
    assert 0 <= share <= 1 and 0 <= after <= 1
    if step < warmup_steps:
        assert share == (step + 1) / warmup_steps
    else:
        assert final - 1e-9 <= after <= share
    if step + 1 <= (1 - decay_fraction) * max_steps and step + 1 >= warmup_steps:
        assert after == 1.0


def test_no_warmup_and_a_run_shorter_than_its_warmup() -> None:
    assert schedule(0, TrainConfig(warmup_steps=0, max_steps=1)) == 1.0
    assert schedule(0, TrainConfig(warmup_steps=10, max_steps=1)) == 0.1
