"""Every shipped config loads, builds, steps, and starts at the loss of guessing."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from configs.load import read_config
from data.batches import open_batches
from model.gpt import GPT, next_token_loss
from training.optim import make_optimizer
from training.runtime import start_runtime
from training.step import train_step

ROOT = Path(__file__).parent.parent.parent
CONFIGS = ROOT / "configs"
SHIPPED = sorted(path.name for path in CONFIGS.glob("*.yaml"))
# text8.yaml is enwik8.yaml on another text, as a test below makes sure.
DIFFERENT = [f"configs/{name}" for name in SHIPPED if name != "text8.yaml"]
DIFFERENT += [f"docs/speedrun/{path.name}" for path in (ROOT / "docs/speedrun").glob("*.yaml")]


def test_text8_is_enwik8_on_another_text() -> None:
    x = {"data": {"source": "x"}}
    enwik8, text8 = (read_config(x, str(CONFIGS / f"{name}.yaml")) for name in ("enwik8", "text8"))
    assert enwik8 == text8


@pytest.mark.parametrize("name", ["default", *sorted(DIFFERENT)])
def test_loads_builds_and_steps(workplace: Path, name: str) -> None:
    file = None if name == "default" else str(ROOT / name)
    # On a CPU, one short sequence; and with the embedded text in place of others.
    small: dict[str, Any] = {
        "model": {"block_size": 64},
        "train": {"device": "cpu", "batch_size": 1, "gradient_accumulation_steps": 1},
    }
    config = read_config(small, file)
    if config.data.source != "repeat":
        config = read_config(small | {"data": {"source": "pydocs"}}, file)
    torch.manual_seed(config.train.seed)
    batches = open_batches(config.data, config.model.block_size, config.train.seed)
    model = GPT(config.model, batches.tokenizer.vocab_size)
    runtime = start_runtime(config.train)

    batch = batches.train_batch(0, 1)
    with torch.no_grad():
        loss = next_token_loss(model(batch[:, :-1]), batch[:, 1:])
    assert loss.item() == pytest.approx(math.log(batches.tokenizer.vocab_size), rel=0.02)

    before = [p.detach().clone() for p in model.parameters()]
    model.compute_dtype = runtime.precision
    optimizer = make_optimizer(model, config.train, runtime.precision)
    loss_value, norm = train_step(model, optimizer, batch, config.train, 1.0)
    assert loss_value == pytest.approx(loss.item(), rel=0.02)
    assert norm > 0
    # What stands before a matrix that starts at zero is reached by the second step.
    train_step(model, optimizer, batch, config.train, 1.0)
    moved = [not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True)]
    assert all(moved)
