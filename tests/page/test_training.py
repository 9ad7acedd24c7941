"""Training in the page, in a browser, against PyTorch."""

import base64
import dataclasses
from collections.abc import Iterator
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from configs.config import ModelConfig, TrainConfig
from model.gpt import GPT, NGRAM_ROWS, next_token_loss
from page.html import pack
from page.playground import playground_data
from tests.lens.models import CLASSICAL, MODERN, VOCAB
from tests.page.conftest import ATTENTIONS
from training.optim import make_optimizer
from training.step import train_step

# JavaScript for the tests. Numbers travel in base64, which playwright transfers faster.
ASK = f"const ROWS = {NGRAM_ROWS};"
ASK += """
const base64 = (floats) => btoa([...new Uint8Array(floats.buffer, floats.byteOffset, floats.length *
  floats.BYTES_PER_ELEMENT)].map((byte) => String.fromCharCode(byte)).join(""));
function gradients(config, vocabSize, packed, batch) {
  const learner = new Learner(config, shapesOf(config, vocabSize, ROWS));
  learner.load({}, (room) => room.set(floatsOf(packed)));
  const loss = learner.learn(batch, batch.length * (batch[0].length - 1));
  return [loss, base64(learner.gradients)];
}
async function train(config, vocabSize, packed, batches, train, workers) {
  const shapes = shapesOf(config, vocabSize, ROWS);
  const start = { step: 0, weights: packed ? floatsOf(packed)
    : initialize(config, shapes, train.seed) };
  const trainer = new Trainer(config, train, shapes, workers, script, start);
  const steps = [], weights = [];
  for (const batch of batches) steps.push(await trainer.step(batch));
  for (let rank = 0; rank < workers; rank++) {
    weights.push(base64((await trainer.weights(rank)).weights));
  }
  for (const worker of trainer.workers) worker.terminate();
  return { steps, weights, shapes };
}
"""


@pytest.fixture(scope="module")
def tab(engine: Any) -> Any:
    """Return the tab with the engine, and the functions above."""
    engine.add_script_tag(content=ASK)
    return engine


def random_config(random: Random) -> ModelConfig:
    """Return a config drawn from all that the page trains."""
    tied = random.random() < 0.3
    # A norm of two numbers is so steep that float32 has no five digits.
    n_head, head_width = random.choice([(1, 10), (2, 6), (2, 24), (3, 6), (3, 10)])
    return ModelConfig(
        block_size=random.randint(1, 40),
        n_layer=random.choice([1, 2, 3]),
        n_head=n_head,
        n_embd=n_head * head_width,
        positions=random.choice(["learned", "rotary", "none"]),
        ngrams=random.choice([1, 1, 2, 3]),
        activation=random.choice(["gelu", "gelu_tanh", "relu", "relu2"]),
        qk_norm=random.random() < 0.5,
        tie_embeddings=tied,
        bias=random.random() < 0.5,
        head_bias=not tied and random.random() < 0.5,
    )


def random_model(config: ModelConfig, vocab_size: int, seed: int) -> GPT:
    """Return a model all of whose weights affect the loss."""
    torch.manual_seed(seed)
    model = GPT(config, vocab_size)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn(weight.shape) * 0.2)
    return model


def packed(model: GPT) -> str:
    return pack(torch.cat([weight.flatten() for weight in model.state_dict().values()]))


def floats(text: str) -> Any:
    return np.frombuffer(base64.b64decode(text), "<f4")


def by_name(model: GPT, numbers: Any) -> Iterator[tuple[str, Tensor, Any]]:
    """Yield each weight of the model with its name, and the page's numbers for it."""
    at = 0
    for name, weight in model.named_parameters():
        yield name, weight, numbers[at : at + weight.numel()].reshape(weight.shape)
        at += weight.numel()
    assert at == len(numbers)


def random_batches(V: int, steps: int, *shape: int) -> list[Tensor]:
    return [torch.randint(V, shape) for _ in range(steps)]


CONFIGS = [MODERN, CLASSICAL, replace(MODERN, ngrams=3), replace(MODERN, n_embd=64)]
CONFIGS += [random_config(Random(seed)) for seed in range(4, 14)]
CONFIGS += [
    replace((MODERN, CLASSICAL)[i % 2], n_head=4, n_embd=24, **given)
    for i, given in enumerate(ATTENTIONS)
]


@pytest.mark.parametrize(("seed", "config"), [*enumerate(CONFIGS)])
def test_gradients_match_autograd(tab: Any, seed: int, config: ModelConfig) -> None:
    """The first are the kinds of block that ship, then some are drawn, then kinds of attention."""
    V, T = VOCAB + seed, config.block_size
    model = random_model(config, V, seed)
    batch = torch.randint(V, (3, T + 1))
    given = [dataclasses.asdict(config), V, packed(model), batch.tolist()]
    loss, found = tab.evaluate("(a) => gradients(...a)", given)
    model.double()
    expected = next_token_loss(model(batch[:, :-1]), batch[:, 1:])
    assert loss == pytest.approx(expected.item(), rel=1e-6)
    expected.backward()
    gradients = floats(found)
    rounding = 1e-7 * np.abs(gradients).max()  # where the gradient is zero, as of a key's bias
    for name, weight, own in by_name(model, gradients):
        assert weight.grad is not None
        error, largest = np.abs(own - weight.grad.numpy()).max(), weight.grad.abs().max().item()
        assert error <= 1e-5 * largest + rounding, name


def train(
    tab: Any,
    config: ModelConfig,
    batches: list[Tensor],
    choices: TrainConfig,
    model: GPT | None = None,
    workers: int = 1,
) -> dict[str, Any]:
    """Train in the page; return its results, and the weights of each worker."""
    given = dataclasses.asdict(config), VOCAB, packed(model) if model else None
    rest = (
        [each.tolist() for each in batches],
        dataclasses.asdict(choices) | playground_data()["muon"],
        workers,
    )
    result = tab.evaluate("(a) => train(...a)", [*given, *rest])
    result["weights"] = [floats(each) for each in result["weights"]]
    return dict(result)


@pytest.mark.parametrize(
    ("config", "choices"),
    [
        (replace(MODERN, ngrams=2, tie_embeddings=True), TrainConfig(grad_clip=0.5)),
        (
            replace(CLASSICAL, ngrams=2, head_bias=True),
            TrainConfig(optimizer="adamw", beta2=0.9, ngram_decay=50.0, grad_clip=0.0),
        ),
        (replace(MODERN, mlp_ratio=0, n_kv_head=1, window=[3, 0, 5]), TrainConfig()),
    ],
    ids=["muon", "adamw", "attention only"],
)
def test_five_steps_match_train_step(tab: Any, config: ModelConfig, choices: TrainConfig) -> None:
    rate, decay = choices.adamw_learning_rate, choices.first_weight_decay  # as in page/playground
    choices = replace(choices, warmup_steps=2, schedule="constant", learning_rate=rate)
    choices = replace(choices, weight_decay=decay)
    model = random_model(config, VOCAB, 0)
    batches = random_batches(VOCAB, 5, 4, config.block_size + 1)
    found = train(tab, config, batches, choices, model)
    assert [*map(tuple, found["shapes"])] == [
        (name, list(weight.shape)) for name, weight in model.state_dict().items()
    ]
    optimizer = make_optimizer(model, choices)
    for step, (batch, result) in enumerate(zip(batches, found["steps"], strict=True)):
        loss, norm = train_step(model, optimizer, batch, choices, step)
        assert result["step"] == step + 1
        assert result["loss"] == pytest.approx(loss.item(), rel=1e-5)
        assert result["gradNorm"] == pytest.approx(norm.item(), rel=1e-4)
    for name, weight, own in by_name(model, found["weights"][0]):
        # AdamW divides by the size of a gradient, also of one that is zero but for rounding.
        if not name.endswith("attn.key.bias"):
            assert np.abs(own - weight.detach().numpy()).max() < 3e-4, name


def test_workers_agree(tab: Any) -> None:
    """One worker and several make the same steps up to rounding. Replicas are bitwise identical."""
    batches = random_batches(VOCAB, 4, 5, 13)
    choices = TrainConfig(warmup_steps=2, learning_rate=0.01)
    one, two, three = (
        train(tab, MODERN, batches, choices, workers=workers) for workers in (1, 2, 3)
    )
    for many in (two, three):
        for single, several in zip(one["steps"], many["steps"], strict=True):
            assert several == pytest.approx(single, rel=1e-5)
        first, *replicas = many["weights"]
        assert not np.array_equal(first, one["weights"][0])  # or nothing was shared
        for replica in replicas:
            assert np.array_equal(replica, first)


@pytest.mark.parametrize("mlp_ratio", [0, 4])
def test_initial_weights_are_distributed_as_those_of_gpt(tab: Any, mlp_ratio: int) -> None:
    config = replace(CLASSICAL, n_embd=48, zero_init=False, ngrams=2, mlp_ratio=mlp_ratio)
    choices = TrainConfig(optimizer="adamw", learning_rate=0.0)
    (found,) = train(tab, config, random_batches(VOCAB, 1, 2, 13), choices)["weights"]
    for name, weight, own in by_name(GPT(config, VOCAB), found):
        tolerance = 4 / (2 * weight.numel()) ** 0.5  # of an estimated standard deviation
        std = weight.std(correction=0).item()
        assert own.std() == pytest.approx(std, rel=tolerance), name
        assert abs(own.mean() - weight.mean().item()) < 0.02 * tolerance * 2, name


def test_error_in_a_worker_is_heard(tab: Any) -> None:
    call = """(config) => new Trainer(config, {}, shapesOf(config, 5, ROWS), 2, script, { step: 0,
      weights: initialize(config, shapesOf(config, 5, ROWS), 1) }).step([[1, 2], null])"""
    with pytest.raises(Exception, match="null"):
        tab.evaluate(call, dataclasses.asdict(MODERN))


def test_random_numbers_depend_on_the_whole_seed(tab: Any) -> None:
    call = "(seed) => new Random(seed).uniform()"
    first, again, *others = (tab.evaluate(call, seed) for seed in (1, 1, 2, 2**32 + 1))
    assert first == again and len({first, *others}) == 3
