"""The page of code, docs/learn/gpt.py, is the model and the training of configs/gpt2.yaml."""

import sys
from typing import Any

import pytest
import torch

from configs.load import read_config
from model.gpt import GPT, next_token_loss
from tests.conftest import ROOT
from training.optim import get_lr_scale, make_optimizer
from training.step import train_step


def test_page_of_code_trains_like_configs_gpt2(monkeypatch: Any, capsys: Any) -> None:
    """In float64 the logits, the loss, and the weights after four steps agree."""
    source = (ROOT / "docs/learn/gpt.py").read_text("utf-8").replace("range(500)", "range(130)")
    assert source.count("\n") <= 120
    definitions, training = source.split("# 5. ")
    page: dict[str, Any] = {}
    monkeypatch.setattr(sys, "argv", ["gpt.py"])
    exec(definitions, page)
    config = read_config({}, str(ROOT / "configs/gpt2.yaml"))
    for own, name in {"steps": "max_steps", "B": "batch_size", "warmup": "warmup_steps"}.items():
        assert page[own] == getattr(config.train, name)

    names = ["token_embedding.weight", "position_embedding.weight"]
    for part in "final_norm", *(f"blocks.{i}.{p}" for i, b in enumerate(page["blocks"]) for p in b):
        names += [f"{part}.weight", f"{part}.bias"]
    weights = dict(zip(names, page["weights"], strict=True))
    model = GPT(config.model, len(page["chars"])).double()
    for name, weight in weights.items():
        assert weight.std().item() == pytest.approx(model.get_parameter(name).std().item(), rel=0.1)
        weight.data = torch.randn(weight.shape).double() / 4  # so that gradients are clipped
    model.load_state_dict(weights)

    batch = page["held_out"][:3]
    logits = page["gpt"](batch[:, :-1])
    torch.testing.assert_close(logits, model(batch[:, :-1]))
    loss = next_token_loss(logits, batch[:, 1:])
    torch.testing.assert_close(page["loss_of"](batch), loss)

    few = {"max_steps": 4, "batch_size": 2, "warmup_steps": 2}
    train = read_config({"train": few}, None, config).train
    torch.manual_seed(1)
    exec("#" + training, page | {"steps": 4, "B": 2, "warmup": 2})
    torch.manual_seed(1)
    optimizer = make_optimizer(model, train)
    for step in range(4):
        batch = page["train"][torch.randint(len(page["train"]), (2,))]
        _, norm = train_step(model, optimizer, batch, train, get_lr_scale(step, train))
        assert norm > 1
    torch.testing.assert_close(weights, dict(model.named_parameters()))
    assert len(capsys.readouterr().out) == 132  # characters: the first, 130 samples, a newline
