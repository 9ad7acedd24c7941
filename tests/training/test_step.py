"""The training step and dropout match their definitions."""

import dataclasses
import functools
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from configs.config import Config, ModelConfig, TrainConfig
from model.gpt import GPT
from training.machine import Machine
from training.optim import Optimizer, gradient_of, make_optimizer
from training.step import make_model, train_step

V = 7
SMALL = ModelConfig(block_size=6, n_layer=3, n_head=2, n_embd=12, zero_init=False)


def make(**options: Any) -> GPT:
    torch.manual_seed(0)
    return GPT(dataclasses.replace(SMALL, **options), V)


def batch_of(count: int, length: int = 7, seed: int = 1) -> Tensor:
    return torch.randint(V, (count, length), generator=torch.Generator().manual_seed(seed))


def nats(model: GPT, sequences: Tensor) -> Tensor:
    """Return -log p of every token but the first."""
    log_p = model(sequences[:, :-1]).double().log_softmax(-1)
    return -log_p.gather(-1, sequences[:, 1:, None]).flatten()


# --- the training step ---------------------------------------------------------------------------


class Descent(Optimizer):
    """Plain gradient descent with a learning rate of 1."""

    def __init__(self, model: nn.Module) -> None:
        self.weights, self.state = dict(model.named_parameters()), {}

    @torch.no_grad()
    def step(self, lr_scale: float, weight_decay: float) -> None:
        for weight in self.weights.values():
            weight.sub_(gradient_of(weight), alpha=lr_scale)


@pytest.mark.parametrize("micro_batches", [1, 3])
@pytest.mark.parametrize("grad_clip", [0.0, 0.25, 1e3])
def test_step_is_the_clipped_gradient_of_the_mean_loss(
    micro_batches: int, grad_clip: float
) -> None:
    """Gradients of the previous step do not count."""
    model, batch = make(), batch_of(6)
    config = TrainConfig(
        batch_size=6, gradient_accumulation_steps=micro_batches, grad_clip=grad_clip
    )
    expected_loss = nats(model, batch).mean()
    gradients = torch.autograd.grad(expected_loss, list(model.parameters()))
    expected_norm = torch.cat([g.flatten() for g in gradients]).norm().item()
    assert 0.25 < expected_norm < 1e3
    scale = 0.25 / expected_norm if grad_clip == 0.25 else 1.0
    before = [p.detach().clone() for p in model.parameters()]
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    loss, norm = train_step(model, Descent(model), batch, config, 5)  # of 10 warmup steps
    assert loss.item() == pytest.approx(expected_loss.item(), rel=1e-5)
    assert norm.item() == pytest.approx(expected_norm, rel=1e-4)  # before clipping
    for old, new, g in zip(before, model.parameters(), gradients, strict=True):
        torch.testing.assert_close(new, old - 0.6 * scale * g, rtol=1e-4, atol=1e-6)


def test_weights_that_the_loss_ignores_do_not_move() -> None:
    model = make()
    model.ignored = nn.Linear(3, 2)
    before = model.ignored.weight.detach().clone()
    config = TrainConfig(optimizer="adamw", warmup_steps=0, weight_decay=0.0)
    train_step(model, make_optimizer(model, config), batch_of(2), config, 0)
    assert torch.equal(model.ignored.weight, before)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*should not be instantiated")  # raised inside PyTorch 2.13
def test_compiled_model_gives_the_same_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Embeddings are not compiled: their gradients would be summed in a varying order."""
    graphs = list[str]()

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(graph.code)
        return graph.forward

    monkeypatch.setattr(GPT, "compile", functools.partialmethod(nn.Module.compile, backend=backend))
    machine = Machine("cpu", "none", 1, 1, "bfloat16", torch.__version__)
    found = []
    for compiled in (False, True):
        config = TrainConfig(compile=compiled)
        model, optimizer = make_model(Config(model=SMALL, train=config), V, machine)
        found.append(train_step(model, optimizer, batch_of(4), config, 0))
    torch.testing.assert_close(found[0], found[1], rtol=1e-5, atol=0)
    assert "linear(" in "".join(graphs) and "embedding(" not in "".join(graphs)


# --- dropout -------------------------------------------------------------------------------------


def test_set_dropout_is_dropout_of_the_config() -> None:
    omitted, given, none = make(), make(dropout=0.3), make(dropout=0.0)
    logits = []
    for model in (omitted, given, none):
        torch.manual_seed(1)
        if model is omitted:
            model.dropout.p = 0.3
        logits.append(model(batch_of(2, 6)))
    assert torch.equal(logits[0], logits[1]) and not torch.equal(logits[0], logits[2])
