"""Training in the page, in a browser, against PyTorch."""

import dataclasses
import json
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from model.config import ModelConfig
from model.gpt import GPT, next_token_loss
from page.bundle import bundle
from page.html import pack
from tests.lens.models import CLASSICAL, MODERN, VOCAB

SCRIPT = bundle(Path(__file__).parent / "training.js")
# JavaScript for the tests; numbers return in base64.
ASK = """
const base64 = (floats) => btoa([...new Uint8Array(Float32Array.from(floats).buffer)]
  .map((byte) => String.fromCharCode(byte)).join(""));
function gradients(config, vocabSize, packed, batch, multiToken) {
  const learner = new Learner(config, shapesOf(config, vocabSize));
  learner.load({}, (room) => room.set(floatsOf(packed)));
  const loss = learner.learn(batch, batch.length * (batch[0].length - 1), multiToken);
  return JSON.stringify([loss, base64(learner.gradients)]);
}
"""


@pytest.fixture(scope="module")
def tab(window: Any) -> Any:
    """Return a blank page with what trains."""
    tab, _ = window
    tab.goto("about:blank")
    tab.add_script_tag(content=SCRIPT + ASK)
    return tab


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


def floats(base64_text: str) -> Any:
    import base64

    return np.frombuffer(base64.b64decode(base64_text), "<f4")


@pytest.mark.parametrize("seed", range(14))
def test_gradients_match_autograd(tab: Any, seed: int) -> None:
    """The first are the kinds of block that ship; the others are drawn."""
    random = Random(seed)
    shipped = [MODERN, CLASSICAL, replace(MODERN, ngrams=3), replace(MODERN, n_embd=256)]
    config = shipped[seed] if seed < len(shipped) else random_config(random)
    V, T, multi_token = VOCAB + seed, config.block_size, 0.5 * (seed % 2)
    model = random_model(config, V, seed)
    batch = torch.randint(V, (3, T + 1))
    loss, found = json.loads(
        tab.evaluate(
            "(a) => gradients(...a)",
            [dataclasses.asdict(config), V, packed(model), batch.tolist(), multi_token],
        )
    )
    model.double()
    logits = model(batch[:, :-1])
    expected = next_token_loss(logits, batch[:, 1:])
    assert loss == pytest.approx(expected.item(), rel=1e-6)
    if T > 1:
        expected = expected + multi_token * next_token_loss(logits[:, :-1], batch[:, 2:])
    expected.backward()
    at, gradients = 0, floats(found)
    rounding = 1e-7 * np.abs(gradients).max()  # where the gradient is zero, as of a key's bias
    for name, weight in model.named_parameters():
        count = weight.numel()
        own = gradients[at : at + count].reshape(weight.shape)
        at += count
        assert weight.grad is not None
        error, largest = np.abs(own - weight.grad.numpy()).max(), weight.grad.abs().max().item()
        print(name, error / largest, largest)
        assert error <= 1e-5 * largest + rounding, name
    assert at == len(gradients)
