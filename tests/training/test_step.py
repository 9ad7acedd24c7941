"""The state, the training step, its results and the evaluation match their definitions."""

import dataclasses
import functools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from configs.config import Config, DataConfig, ModelConfig, TrainConfig
from data.batches import TaskBatches, TextBatches
from data.corpus import Corpus, Text
from data.tokenizer import ByteTokenizer, CharTokenizer, Tokenizer
from model.gpt import GPT
from training.machine import Machine, Processes
from training.optim import Optimizer, gradient_of, make_optimizer
from training.step import (
    Evaluation,
    TrainState,
    check_results,
    evaluate,
    make_model,
    train_step,
)

V = 7
BAD = [math.nan, math.inf, -math.inf]
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
    """Plain gradient descent with a learning rate of a tenth of the step's index."""

    def __init__(self, model: nn.Module) -> None:
        self.weights, self.state = dict(model.named_parameters()), {}

    @torch.no_grad()
    def step(self, step: int) -> None:
        for weight in self.weights.values():
            weight.sub_(gradient_of(weight), alpha=step / 10)


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
    loss, norm = train_step(model, Descent(model), batch, config, 5)
    assert loss.item() == pytest.approx(expected_loss.item(), rel=1e-5)
    assert norm.item() == pytest.approx(expected_norm, rel=1e-4)  # before clipping
    for old, new, g in zip(before, model.parameters(), gradients, strict=True):
        torch.testing.assert_close(new, old - 0.5 * scale * g, rtol=1e-4, atol=1e-6)


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


# --- the evaluation ------------------------------------------------------------------------------


def split() -> list[Tensor]:
    """Return batches of unequal size and length, so that the mean of batch means is wrong."""
    return [batch_of(3), batch_of(1, 7, 2), batch_of(2, 4, 3), batch_of(1, 2, 4)]


def text_of(tokenizer: Tokenizer) -> TextBatches:
    tokens = np.zeros(99, dtype=np.uint8)
    text = Text(tokens, tokenizer, Corpus("zeros", 0), Path())
    return TextBatches(text, DataConfig(), 8, 0)


def test_evaluation_is_the_token_mean_and_keeps_the_rng_state() -> None:
    model = make(dropout=0.5, attn_dropout=0.5)
    state = torch.get_rng_state()
    result = evaluate(model, iter(split()), text_of(CharTokenizer("abcdefg")), Processes())
    assert result
    assert torch.equal(state, torch.get_rng_state()) and model.training
    losses = [nats(model.eval(), row[None]) for batch in split() for row in batch]
    assert result.loss == pytest.approx(torch.cat(losses).mean().item(), rel=1e-5)
    assert result.bits_per_char == pytest.approx(result.loss / math.log(2))
    assert result.accuracy is None
    assert all(p.grad is None for p in model.parameters())


def test_accuracy_is_the_fraction_of_answers_that_have_the_highest_logit() -> None:
    """The answers are the closing brackets. The last batch is smaller."""
    model, task = make(), TaskBatches(DataConfig(source="brackets", task_kinds=3), 6, 0)
    batches = [*task.validation_batches(20, 50 * 6)]
    result = evaluate(model, iter(batches), task, Processes())
    right = [
        model(row[None, :t])[0, -1].argmax() == row[t]
        for row in torch.cat(batches)
        for t in range(1, 7)
        if row[t] >= 3
    ]
    assert 0 < sum(right) < len(right)
    assert result and result.accuracy == sum(right) / len(right)


def test_bytes_have_two_units_and_may_have_no_character() -> None:
    bytes_of_none, text = iter([torch.full((1, 5), 0x80)]), text_of(ByteTokenizer())
    result = evaluate(GPT(SMALL, 256), bytes_of_none, text, Processes())
    assert result and math.isfinite(result.bits_per_char)
    loss = Evaluation(nats=6 * math.log(2), tokens=3, characters=2, surprisal=torch.empty(0))
    assert loss.in_units("byte") == "1.3863 nats/byte  2.000 bits/byte  3.000 bits/char"


# --- results ------------------------------------------------------------------------------------


def test_infinite_loss_or_norm_is_an_error() -> None:
    for loss, norm in ((math.inf, 1.0), (1.0, math.inf)):
        with pytest.raises(FloatingPointError, match=r"^at step 9: loss"):
            check_results([loss], [norm], 9, {})


def test_state_keeps_the_best_loss() -> None:
    state, losses = TrainState(), [3.0, 2.0, 2.0, 4.0, 1.0]  # a tie is not better
    for i, loss in enumerate(losses):
        state.step = 2 * i + 2
        assert state.record(loss) == (loss < min(losses[:i], default=math.inf))
        assert state == TrainState(state.step, 0.0, None, state.step, loss, min(losses[: i + 1]))
    for bad in BAD:
        with pytest.raises(FloatingPointError, match=f"^at step {state.step}: validation loss "):
            state.record(bad)
    assert state.best_val_loss == min(losses)
