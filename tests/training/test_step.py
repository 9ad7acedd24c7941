"""The training step, the evaluation and the size estimates match their definitions."""

import dataclasses
import functools
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from data.tokenizer import ByteTokenizer, CharTokenizer
from model.config import ModelConfig
from model.gpt import GPT, next_token_loss
from training.config import TrainConfig
from training.optim import gradient
from training.processes import Processes
from training.step import Evaluation, describe_size, evaluate, flops_per_token, train_step

V = 7
SMALL = ModelConfig(block_size=6, n_layer=3, n_head=2, n_embd=12, zero_init=False)


def make(**options: Any) -> GPT:
    torch.manual_seed(0)
    return GPT(dataclasses.replace(SMALL, **options), V)


def batch_of(count: int, length: int = 7, seed: int = 1) -> Tensor:
    return torch.randint(V, (count, length), generator=torch.Generator().manual_seed(seed))


def nats(model: GPT, sequences: Tensor) -> Tensor:
    """Return -log p of every token except the first, computed one at a time."""
    losses = []
    for tokens in sequences:
        logits = model(tokens[None, :-1])[0].double()
        for position, token in enumerate(tokens[1:].tolist()):
            losses.append(logits[position].exp().sum().log() - logits[position, token])
    return torch.stack(losses)


# --- the training step ---------------------------------------------------------------------------


class Descent:
    """Plain gradient descent, which steps along the gradient."""

    def __init__(self, model: nn.Module) -> None:
        self.weights, self.state = dict(model.named_parameters()), dict[str, dict[str, Tensor]]()

    @torch.no_grad()
    def step(self, lr_scale: float) -> None:
        for name, weight in self.weights.items():
            weight.sub_(gradient(name, weight), alpha=lr_scale)


@pytest.mark.parametrize("micro_batches", [1, 3])
@pytest.mark.parametrize("multi_token", [0.0, 0.3])
@pytest.mark.parametrize(("grad_clip", "taught"), [(0.0, True), (0.25, False), (1e3, False)])
def test_step_is_the_clipped_gradient_of_the_mean_loss(
    micro_batches: int, multi_token: float, grad_clip: float, taught: bool
) -> None:
    """Multi-token prediction and teachers change the gradient, but not the reported loss."""
    model, batch = make(), batch_of(6)
    teachers = [make(ngrams=2), make(positions="none")] if taught else []
    config = TrainConfig(
        batch_size=6, gradient_accumulation_steps=micro_batches, grad_clip=grad_clip
    )
    expected_loss = nats(model, batch).mean()
    log_p = torch.log_softmax(model(batch[:, :-1]), -1)
    after_next = -log_p[:, :-1].gather(-1, batch[:, 2:, None]).mean()
    targets = [teacher(batch[:, :-1]).softmax(-1) for teacher in teachers]
    learned = -(sum(targets) / 2 * log_p).sum(-1).mean() if taught else expected_loss
    objective = learned + multi_token * after_next
    gradients = torch.autograd.grad(objective, list(model.parameters()))
    expected_norm = torch.cat([g.flatten() for g in gradients]).norm().item()
    assert taught or 0.25 < expected_norm < 1e3
    scale = 0.25 / expected_norm if grad_clip == 0.25 else 1.0
    before = [p.detach().clone() for p in model.parameters()]
    loss, norm = train_step(model, Descent(model), batch, config, 0.5, multi_token, teachers)
    assert loss.item() == pytest.approx(expected_loss.item(), rel=1e-5)
    assert norm.item() == pytest.approx(expected_norm, rel=1e-4)  # before clipping
    for old, new, g in zip(before, model.parameters(), gradients, strict=True):
        torch.testing.assert_close(new, old - 0.5 * scale * g, rtol=1e-4, atol=1e-6)
        assert new.grad is None  # no gradient is left for the next step


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*should not be instantiated")  # raised inside PyTorch 2.13
def test_compiled_model_gives_the_same_step() -> None:
    """Embeddings are not compiled: their gradients would be summed in a varying order."""
    model, graphs = make(), list[str]()
    model.compute_dtype = torch.bfloat16

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(graph.code)
        return graph.forward

    step = functools.partial(train_step, model, Descent(model), batch_of(4), TrainConfig(), 0.0)
    before = step()
    model.compile(backend=backend)
    torch.testing.assert_close(step(), before, rtol=1e-5, atol=0)
    assert "linear(" in "".join(graphs) and "embedding(" not in "".join(graphs)
    assert all(p.grad is None for p in model.parameters())


# --- the evaluation ------------------------------------------------------------------------------


def split() -> list[Tensor]:
    """Return batches of unequal size and length, so that the mean of batch means is wrong."""
    return [batch_of(3), batch_of(1, 7, 2), batch_of(2, 4, 3), batch_of(1, 2, 4)]


def test_evaluation_is_the_token_mean_and_keeps_the_rng_state() -> None:
    model = make(dropout=0.5, attn_dropout=0.5)
    state = torch.get_rng_state()
    result = evaluate(model, iter(split()), CharTokenizer("abcdefg"), "cpu", Processes())
    assert torch.equal(state, torch.get_rng_state()) and model.training
    losses = [nats(model.eval(), row[None]) for batch in split() for row in batch]
    assert result.loss == pytest.approx(torch.cat(losses).mean().item(), rel=1e-5)
    assert result.bits_per_char == pytest.approx(result.loss / math.log(2))
    assert all(p.grad is None for p in model.parameters())


def test_byte_tokens_report_bits_per_character() -> None:
    """Characters are counted from the second byte, the first one that is predicted."""
    model, tokens = GPT(SMALL, 256), torch.tensor([[*"a日é b語".encode()]])  # 6 in 11 bytes
    batches = [tokens[:, :6], tokens[:, 5:]]
    result = evaluate(model, iter(batches), ByteTokenizer(), "cpu", Processes())
    total = sum(nats(model, batch).sum().item() for batch in batches)
    assert result.loss == pytest.approx(total / 10, rel=1e-5)
    assert result.bits_per_char == pytest.approx(total / math.log(2) / 5, rel=1e-5)
    no_character = evaluate(
        model, iter([torch.full((1, 5), 0x80)]), ByteTokenizer(), "cpu", Processes()
    )
    assert math.isfinite(no_character.bits_per_char)
    assert Evaluation(2 * math.log(2), 3.0, 9).in_units("byte") == (
        "1.3863 nats/byte  2.000 bits/byte  3.000 bits/char"
    )


# --- the size estimates --------------------------------------------------------------------------

CHOICES = [
    {"n_layer": 2, "n_embd": 64, "n_head": 2, "block_size": 256},
    {"activation": "gelu", "bias": True, "positions": "learned"},
    {"dropout": 0.1, "ngrams": 3},
]


@pytest.mark.parametrize("choices", CHOICES, ids=str)
def test_size_estimates_match_a_real_step(choices: dict[str, Any]) -> None:
    """PyTorch counts the FLOPs, with explicit attention because it sees only plain matmuls. Memory
    is what a forward pass keeps for the backward pass."""
    config = ModelConfig(**choices | {"attention": "explicit"})
    train = TrainConfig(batch_size=8, gradient_accumulation_steps=2)
    model, tokens = GPT(config, 65), torch.randint(65, (4, config.block_size + 1))
    held = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        held[storage.data_ptr()] = storage.nbytes()
        return tensor

    with FlopCounterMode(display=False) as counter:
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            loss = next_token_loss(model(tokens[:, :-1]), tokens[:, 1:])
        loss.backward()
    assert flops_per_token(model) * 4 * config.block_size == counter.get_total_flops()
    parameters, memory, compute = describe_size(config, train, 65).splitlines()
    assert parameters == f"parameters  {model.num_parameters():,}"
    megabytes = (sum(held.values()) + 12 * model.num_parameters()) / 1e6 + 250
    assert float(memory.split()[2].replace(",", "")) == pytest.approx(megabytes, rel=0.02)
    assert compute == f"compute     {2 * counter.get_total_flops() / 1e9:,.1f} GFLOP per step"
