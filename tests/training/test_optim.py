"""Muon against its formula, AdamW against PyTorch's, which weight is whose, and the schedule."""

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor, nn

from model.config import ModelConfig
from model.gpt import GPT
from tests.conftest import DEBUG, ROOT
from training.config import TrainConfig
from training.optim import Optimizer, get_lr_scale, get_multi_token_weight, orthogonalize

SMALL = ModelConfig(block_size=6, n_layer=2, n_head=2, n_embd=8, bias=True, ngrams=2)


def make() -> GPT:
    torch.manual_seed(0)
    return GPT(SMALL, 7)


def give_gradients(model: nn.Module, seed: int) -> dict[str, Tensor]:
    """The same at each call with the same seed."""
    generator = torch.Generator().manual_seed(seed)
    for p in model.parameters():
        p.grad = torch.randn(p.shape, generator=generator)
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


# --- orthogonalization ---------------------------------------------------------------------------

sizes = st.integers(1, 24)


@given(sizes, sizes, st.floats(0, 1), st.floats(1e-3, 1e3), st.integers(0, 99))
@example(24, 24, 1.0, 1.0, 0)
def test_orthogonalize_keeps_directions_and_evens_out_their_lengths(
    rows: int, columns: int, fraction: float, scale: float, seed: int
) -> None:
    """Of U S V^T, whose singular values are between 1 and a spread that the type has room for."""
    generator = torch.Generator().manual_seed(seed)
    rank = min(rows, columns)

    def directions(n: int) -> Tensor:
        return torch.linalg.qr(torch.randn(n, rank, generator=generator, dtype=torch.float64)).Q

    U, V = directions(rows), directions(columns)
    for dtype, most, slack in ((torch.float32, 100, 1e-3), (torch.bfloat16, 8, 0.1)):
        S = torch.linspace(1, most**fraction, rank, dtype=torch.float64)
        result = orthogonalize((scale * (U * S @ V.mT)).to(dtype)[None])
        assert result.dtype == dtype and result.shape == (1, rows, columns)
        even = result[0].double()
        values = torch.linalg.svdvals(even)
        assert values.min() > 0.6 and values.max() < 1.3
        in_their_directions = U.mT @ even @ V
        across = in_their_directions - in_their_directions.diagonal().diag()
        assert across.abs().max() < slack, "one direction was mixed into another"
        assert torch.cosine_similarity(even.flatten(), (U @ V.mT).flatten(), dim=0) > 0.95
    nothing = torch.zeros(2, rows, columns)
    assert torch.equal(orthogonalize(nothing), nothing)


# --- which weight is whose -----------------------------------------------------------------------


def test_each_weight_has_one_optimizer() -> None:
    model = make()
    hidden = {
        f"blocks.{layer}.{name}.weight"
        for layer in (0, 1)
        for name in ("attn.query", "attn.key", "attn.value", "attn.out", "mlp.up", "mlp.down")
    }
    expected = {"muon": hidden, "adamw": set()}
    for kind, by_muon in expected.items():
        optimizer = Optimizer(model, TrainConfig(optimizer=kind))  # type: ignore[arg-type]
        muon = [name for names in optimizer.muon.values() for name in names]
        adamw = [name for names in optimizer.adamw.values() for name in names]
        assert set(muon) == by_muon
        assert sorted(muon + adamw) == sorted(name for name, _ in model.named_parameters())
        assert all(optimizer.state[name].keys() == {"momentum"} for name in muon)


# --- a step --------------------------------------------------------------------------------------


def test_muon_is_its_formula() -> None:
    """Two steps, written out for one matrix at a time; 20 x 5 is tall, so its steps are longer."""
    torch.manual_seed(0)
    model = nn.Module()
    shapes = [(5, 20), (20, 5), (5, 20)]  # the first and the last are made orthogonal together
    model.blocks = nn.ModuleList(nn.Linear(*shape, bias=False) for shape in shapes)
    config = TrainConfig(muon_learning_rate=0.3, muon_momentum=0.9, weight_decay=0.2)
    optimizer = Optimizer(model, config)
    expected = weights_of(model)
    momentum = {name: torch.zeros_like(weight) for name, weight in expected.items()}
    for step, lr_scale in enumerate((0.5, 1.0)):
        for name, gradient in give_gradients(model, step).items():
            momentum[name] = 0.9 * momentum[name] + 0.1 * gradient
            X = 0.1 * gradient + 0.9 * momentum[name]
            X = X / X.square().sum().sqrt()
            for _ in range(5):
                XX = X @ X.T
                X = 3.4445 * X - 4.7750 * XX @ X + 2.0315 * XX @ XX @ X
            rate, (rows, columns) = 0.3 * lr_scale, X.shape
            longer = math.sqrt(rows / columns) if rows > columns else 1.0
            expected[name] = (1 - rate * 0.2) * expected[name] - rate * longer * X
        optimizer.step(lr_scale)
        for name, p in model.named_parameters():
            torch.testing.assert_close(p.detach(), expected[name], rtol=0, atol=1e-5)
            torch.testing.assert_close(optimizer.state[name]["momentum"], momentum[name])


def test_muon_in_bfloat16_is_close_and_its_weights_and_momentum_are_float32() -> None:
    results = []
    for precision in (torch.float32, torch.bfloat16):
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


@pytest.mark.parametrize("ngram_decay", [None, 0.0, 0.7])
def test_adamw_is_that_of_pytorch(ngram_decay: float | None) -> None:
    ours, theirs = make(), make()
    config = TrainConfig(
        optimizer="adamw",
        learning_rate=0.03,
        weight_decay=0.4,
        ngram_decay=ngram_decay,
        beta1=0.8,
        beta2=0.95,
    )
    optimizer = Optimizer(ours, config)
    ngrams = list(theirs.ngram_embeddings.parameters())
    matrices = [p for p in theirs.parameters() if p.dim() == 2 and p is not ngrams[0]]
    rest = [p for p in theirs.parameters() if p.dim() != 2]
    groups = [
        {"params": matrices, "weight_decay": 0.4},
        {"params": rest, "weight_decay": 0.0},
        {"params": ngrams, "weight_decay": 0.4 if ngram_decay is None else ngram_decay},
    ]
    reference = torch.optim.AdamW(groups, betas=(0.8, 0.95))
    for step, lr_scale in enumerate((0.5, 1.0, 1.0, 0.1)):
        give_gradients(ours, step)
        give_gradients(theirs, step)
        for group in reference.param_groups:
            group["lr"] = 0.03 * lr_scale
        optimizer.step(lr_scale)
        reference.step()
        for (name, p), q in zip(ours.named_parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-6, msg=name)
            assert optimizer.state[name].keys() == reference.state[q].keys()
            for key, value in reference.state[q].items():
                torch.testing.assert_close(optimizer.state[name][key], value, rtol=1e-5, atol=1e-7)


def test_a_weight_without_a_gradient_is_named() -> None:
    for name in ("blocks.1.mlp.up.weight", "blocks.1.mlp.up.bias"):  # Muon's, AdamW's
        model = make()
        give_gradients(model, 0)
        model.get_parameter(name).grad = None
        with pytest.raises(ValueError, match=f"{name} has no gradient"):
            Optimizer(model, TrainConfig()).step(1.0)


PROGRAM = f"""
import sys
import train

run = ["{DEBUG}", "--train.max_steps=1", "--train.eval_every=1", "--data.source=text.txt"]
for kind in ("muon", "adamw"):
    for precision in ("float32", "bfloat16"):
        which = [f"--train.optimizer={{kind}}", f"--train.precision={{precision}}"]
        assert train.main(run + which) == train.main([*run, "--dry_run"]) == 0
slow = ("torch._dynamo", "torch._inductor", "datasets")
print(*[name for name in sys.modules if name.startswith(slow)], file=sys.stderr)
"""


def test_a_run_imports_nothing_that_is_slow(workplace: Path) -> None:
    """PyTorch's compiler takes as long as a hundred steps of a small model, `datasets` a second."""
    Path("text.txt").write_text("a text that is long enough\n" * 20)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True
    )
    assert result.stderr.strip() == ""


# --- the schedule --------------------------------------------------------------------------------


def expected_lr_scale(step: int, config: TrainConfig) -> float:
    """The same from the shape of the curve: interpolated between its corners."""
    if step < config.warmup_steps:
        return (step + 1) / config.warmup_steps
    begin = max(config.warmup_steps, (1 - config.decay_fraction) * config.max_steps)
    if step <= begin or config.schedule == "constant":
        return 1.0
    x = (step - begin) / max(config.max_steps - begin, 1)
    height = 1 - x if config.schedule == "linear" else math.cos(x * math.pi / 2) ** 2
    return height + config.final_lr_fraction * (1 - height)


@given(
    st.builds(
        TrainConfig,
        max_steps=st.integers(1, 60),
        warmup_steps=st.integers(0, 80),
        decay_fraction=st.floats(0, 1),
        final_lr_fraction=st.floats(0, 1),
        schedule=st.sampled_from(["cosine", "linear", "constant"]),
    )
)
@example(TrainConfig(max_steps=40, warmup_steps=4, final_lr_fraction=0.2))
@example(TrainConfig(max_steps=40, warmup_steps=0, schedule="cosine", decay_fraction=1.0))
def test_the_schedule_is_its_curve(config: TrainConfig) -> None:
    for step in range(config.max_steps + 1):
        lr_scale = get_lr_scale(step, config)
        assert lr_scale == pytest.approx(expected_lr_scale(step, config), abs=1e-9)
        assert 0 <= lr_scale <= 1


def test_adamw_alone_has_a_rate_of_its_own() -> None:
    """A lower one than beside Muon, where it trains what is not a matrix."""
    assert TrainConfig().adamw_learning_rate == 1e-2
    assert TrainConfig(optimizer="adamw").adamw_learning_rate == 1e-3
    assert TrainConfig(optimizer="adamw", learning_rate=0.0).adamw_learning_rate == 0.0


def test_the_weight_of_the_token_after_the_next_ends_in_the_middle() -> None:
    config = TrainConfig(max_steps=8, multi_token=0.4)
    weights = [get_multi_token_weight(step, config) for step in range(9)]
    assert weights == pytest.approx([0.4, 0.3, 0.2, 0.1, 0, 0, 0, 0, 0])
    assert get_multi_token_weight(0, TrainConfig()) == 0
