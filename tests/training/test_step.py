"""The update and the evaluation, each beside its definition written out."""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from data.tokenizer import ByteTokenizer, CharTokenizer, Tokenizer
from model.config import ModelConfig
from model.gpt import GPT
from training import processes as processes_module
from training.config import TrainConfig
from training.optim import Optimizer
from training.processes import Processes
from training.runtime import Runtime, StopSignal
from training.step import Evaluation, evaluate, train_step

CPU, V = torch.device("cpu"), 7
SMALL = ModelConfig(block_size=6, n_layer=3, n_head=2, n_embd=12, zero_init=False)


def make(**options: float) -> GPT:
    torch.manual_seed(0)
    return GPT(dataclasses.replace(SMALL, **options), V)  # type: ignore[arg-type]


def batch_of(count: int, length: int = 7, seed: int = 1) -> Tensor:
    return torch.randint(V, (count, length), generator=torch.Generator().manual_seed(seed))


def nats(model: GPT, sequences: Tensor) -> Tensor:
    """-log p of every token but the first, one at a time."""
    losses = []
    for tokens in sequences:
        logits = model(tokens[None, :-1])[0].double()
        for position, token in enumerate(tokens[1:].tolist()):
            losses.append(logits[position].exp().sum().log() - logits[position, token])
    return torch.stack(losses)


# --- the update ----------------------------------------------------------------------------------


class Descent(Optimizer):
    """Plain gradient descent, whose step is the gradient."""

    @torch.no_grad()
    def step(self, lr_scale: float) -> None:
        for name, weight in self.parameters.items():
            weight.sub_(self.gradient(name), alpha=lr_scale)


@pytest.mark.parametrize("micro_batches", [1, 3])
@pytest.mark.parametrize("grad_clip", [0.0, 0.25, 1e3])
def test_an_update_is_the_clipped_gradient_of_the_mean_loss(
    micro_batches: int, grad_clip: float
) -> None:
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
    loss, norm = train_step(model, Descent(model, config), batch, 0.5)
    assert loss == pytest.approx(expected_loss.item(), rel=1e-5)
    assert norm == pytest.approx(expected_norm, rel=1e-4), "as it was before clipping"
    for old, new, gradient in zip(before, model.parameters(), gradients, strict=True):
        torch.testing.assert_close(new, old - 0.5 * scale * gradient, rtol=1e-4, atol=1e-6)
        assert new.grad is None, "nothing is left for the next update"


@pytest.mark.parametrize("micro_batches", [1, 3])
def test_multi_token_prediction_adds_the_loss_of_the_token_after_the_next(
    micro_batches: int,
) -> None:
    """To what the gradient is of, and not to the loss that is reported."""
    model, batch = make(), batch_of(6)
    logits, log_probabilities = model(batch[:, :-1]), torch.Tensor.log_softmax
    next_loss = nats(model, batch).mean()
    after = -log_probabilities(logits[:, :-1], -1).gather(-1, batch[:, 2:, None]).mean()
    gradients = torch.autograd.grad(next_loss + 0.3 * after, list(model.parameters()))
    config = TrainConfig(batch_size=6, gradient_accumulation_steps=micro_batches, grad_clip=0.0)
    before = [p.detach().clone() for p in model.parameters()]
    loss, _ = train_step(model, Descent(model, config), batch, 0.5, multi_token_weight=0.3)
    assert loss == pytest.approx(next_loss.item(), rel=1e-5)
    for old, new, gradient in zip(before, model.parameters(), gradients, strict=True):
        torch.testing.assert_close(new, old - 0.5 * gradient, rtol=1e-4, atol=1e-6)


def test_multi_token_prediction_needs_a_second_token() -> None:
    """A context of one has no token after the next."""
    results = []
    for weight in (0.0, 0.3):
        model = make()
        loss = train_step(
            model, Descent(model, TrainConfig()), batch_of(4)[:, :2], 0.5, multi_token_weight=weight
        )
        results.append((loss, [p.detach().clone() for p in model.parameters()]))
    assert results[0][0] == results[1][0]
    assert all(map(torch.equal, results[0][1], results[1][1]))


class Wrapped(nn.Module):
    """As DistributedDataParallel: notes whether each backward pass would average gradients."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module, self.averaging, self.noted = module, True, list[bool]()

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        self.averaging = False
        yield
        self.averaging = True

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.module(tokens)
        logits.register_hook(lambda gradient: self.noted.append(self.averaging))
        return logits


def some_processes(
    sum_up: Callable[[Sequence[float]], list[float]], rank: int = 0, size: int = 1
) -> Processes:
    """Processes whose sums are what this makes of the numbers of one."""
    processes = Processes(rank, size)
    object.__setattr__(processes, "sum", sum_up)
    return processes


def test_several_processes_average_once_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes_module, "DistributedDataParallel", Wrapped)
    model = make()
    wrapped, expected = Wrapped(model), nats(model, batch_of(3)).mean().item()
    config = TrainConfig(batch_size=9, gradient_accumulation_steps=3)
    three = some_processes(lambda numbers: [n + 20 for n in numbers], rank=1, size=3)
    loss, _ = train_step(wrapped, Descent(model, config), batch_of(3), 1.0, three)
    assert wrapped.noted == [False, False, True]
    assert loss == pytest.approx((expected + 20) / 3)


@pytest.mark.parametrize("where", ["loss", "gradient", "elsewhere"])
def test_what_is_not_finite_is_never_learned(where: str) -> None:
    """In a loss, in one gradient, or in the loss of another process."""
    model = make()
    weight = model.get_parameter("blocks.1.mlp.up.weight")
    named, processes = ", first in blocks.1.mlp.up.weight", Processes()
    if where == "loss":  # every gradient is spoilt, the first of them the embedding's
        named = ", first in token_embedding.weight"
        with torch.no_grad():
            weight[0, 0] = math.nan
    elif where == "gradient":
        weight.register_hook(lambda gradient: gradient * math.inf)
    else:
        named, processes = "", some_processes(lambda numbers: [math.inf])
    learner = Optimizer(model, TrainConfig())
    before = [p.detach().clone() for p in model.parameters()]
    message = rf"the loss is \S+ and the gradient norm \S+{named}; no weight was updated$"
    with pytest.raises(FloatingPointError, match=message):
        train_step(model, learner, batch_of(4), 1.0, processes)
    for a, b in zip(before, model.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)
        assert b.grad is None
    assert not any(tensor.any() for state in learner.state.values() for tensor in state.values())


@pytest.mark.filterwarnings("ignore:.*should not be instantiated")  # PyTorch 2.13, of its own doing
@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16], ids=str)
def test_compiled_is_the_same_model(
    monkeypatch: pytest.MonkeyPatch, precision: torch.dtype
) -> None:
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))
    model, results = make(), []
    for compiled in (False, True):
        forward = Runtime(CPU, precision, 1).prepare(model, compiled)
        assert (forward is model) != compiled and model.compute_dtype == precision
        results.append(train_step(forward, Descent(model, TrainConfig()), batch_of(4), 0.0))
        assert all(p.grad is None for p in model.parameters())
    assert results[0] == pytest.approx(results[1], rel=1e-5)


# --- the evaluation ------------------------------------------------------------------------------


def split() -> list[Tensor]:
    """Batches of unequal size and length, so that a mean of their means is another number."""
    return [batch_of(3), batch_of(1, 7, 2), batch_of(2, 4, 3), batch_of(1, 2, 4)]


def measured(
    model: nn.Module,
    batches: Sequence[Tensor] = (),
    tokenizer: Tokenizer | None = None,
    processes: Processes = Processes(),  # noqa: B008 - immutable
    skip: int = 0,
) -> Evaluation | None:
    tokenizer = tokenizer or CharTokenizer("abcdefg")
    return evaluate(model, iter(batches or split()), tokenizer, CPU, StopSignal(), processes, skip)


def test_evaluation_is_the_mean_over_every_token_and_draws_nothing() -> None:
    model = make(dropout=0.5, attn_dropout=0.5)
    state = torch.get_rng_state()
    result = measured(model)
    assert torch.equal(state, torch.get_rng_state()) and model.training
    losses = torch.cat([nats(model.eval(), batch) for batch in split()])
    assert len(losses) == 3 * 6 + 6 + 2 * 3 + 1
    assert result is not None and result.val_loss == pytest.approx(losses.mean().item(), rel=1e-5)
    assert result.bits_per_char == pytest.approx(result.val_loss / math.log(2))
    assert all(p.grad is None for p in model.parameters())


def test_predictions_that_are_skipped_do_not_count() -> None:
    """The first two of each sequence; a sequence may be shorter than that."""
    model, tokenizer = make(), ByteTokenizer()
    result = measured(model, tokenizer=tokenizer, skip=2)
    losses = [nats(model.eval(), row[None])[2:] for batch in split() for row in batch]
    assert result is not None
    assert result.val_loss == pytest.approx(torch.cat(losses).mean().item(), rel=1e-5)
    assert result.bits_per_char == pytest.approx(result.val_loss / math.log(2))


def test_bits_are_per_character_where_a_token_is_a_byte() -> None:
    """Counted from the second byte on, which is the first that is predicted."""
    text = "a日é b語"
    bytes_ = np.frombuffer(text.encode(), np.uint8)
    model = GPT(SMALL, 256)
    tokens = torch.from_numpy(bytes_.astype(np.int64))
    batches = [tokens[None, :6], tokens[None, 5:]]
    result = measured(model, batches, ByteTokenizer())
    total = sum(nats(model, batch).sum().item() for batch in batches)
    assert result is not None and len(text) == 6 and len(bytes_) == 11
    assert result.val_loss == pytest.approx(total / 10, rel=1e-5)
    assert result.bits_per_char == pytest.approx(total / math.log(2) / 5, rel=1e-5)
    no_character = measured(model, [torch.full((1, 5), 0x80)], ByteTokenizer())
    assert no_character is not None and math.isfinite(no_character.bits_per_char)


def test_several_processes_take_batches_in_turn() -> None:
    seen: list[Sequence[float]] = []  # what each process would add to the sum

    def see(numbers: Sequence[float]) -> list[float]:
        seen.append(numbers)
        return list(numbers)

    model = make()
    for rank in range(3):
        measured(model, processes=some_processes(see, rank, 3))
    sums = [nats(model, batch).sum().item() for batch in split()]
    tokens = [18, 6, 6, 1]
    for rank, (found_nats, found_tokens, characters, stopped) in enumerate(seen):
        assert found_nats == pytest.approx(sum(sums[rank::3]), rel=1e-5)
        assert found_tokens == characters == sum(tokens[rank::3]) and not stopped


def test_a_stopped_evaluation_says_nothing() -> None:
    """Also where another process was stopped; the model goes on training."""
    model, stop, read = make(), StopSignal(), list[int]()

    def stopping() -> Iterator[Tensor]:
        for number, batch in enumerate(split()):
            read.append(number)
            stop.number = 2 if number == 1 else 0
            yield batch

    assert evaluate(model, stopping(), CharTokenizer("abcdefg"), CPU, stop) is None
    assert read == [0, 1] and model.training
    other = some_processes(lambda numbers: [*numbers[:3], 1.0])
    assert measured(model, processes=other) is None


def test_a_validation_loss_that_is_not_finite_is_an_error() -> None:
    model = make()
    with torch.no_grad():
        model.token_embedding.weight[0, 0] = math.inf
    with pytest.raises(FloatingPointError, match=r"^the validation loss is nan$"):
        measured(model)


def test_an_evaluation_in_words() -> None:
    result = Evaluation(2 * math.log(2), 3.0)
    assert result.describe("char") == "1.3863 nats/char  3.000 bits/char"
    assert result.describe("byte") == "1.3863 nats/byte  2.000 bits/byte  3.000 bits/char"
