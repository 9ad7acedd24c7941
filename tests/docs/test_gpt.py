"""The page of code, docs/learn/gpt.py, is the model and the training of configs/gpt2.yaml."""

import sys
from typing import Any

import pytest
import torch

from configs.load import read_config
from model.gpt import GPT, next_token_loss
from tests.conftest import ROOT
from training.optim import make_optimizer
from training.step import train_step


def test_page_of_code_trains_like_configs_gpt2(monkeypatch: Any, capsys: Any) -> None:
    """In float64 the logits, the loss, and the weights after four steps agree."""
    source = (ROOT / "docs/learn/gpt.py").read_text("utf-8")
    assert source.count("\n") <= 120
    source = source.replace("test[0, :1]", "test[0, :120]").replace("range(500)", "range(10)")
    definitions, training = source.split("# 5. ")
    page: dict[str, Any] = {}
    monkeypatch.setattr(sys, "argv", ["gpt.py"])
    exec(definitions, page)
    few = {"max_steps": 4, "warmup_steps": 2}
    config = read_config({"train": few}, str(ROOT / "configs/gpt2.yaml"))
    model = GPT(config.model, len(page["chars"])).double()
    for weight, own in zip(page["weights"], model.parameters(), strict=True):
        assert weight.std().item() == pytest.approx(own.std().item(), rel=0.1)
        weight.data = torch.randn(own.shape).double() / 4  # so that gradients are clipped
        own.data.copy_(weight)

    batch = page["test"][:3]
    logits = model(batch[:, :-1])
    torch.testing.assert_close(page["gpt"](batch[:, :-1]), logits)
    torch.testing.assert_close(page["loss_of"](batch), next_token_loss(logits, batch[:, 1:]))

    torch.manual_seed(1)
    page |= {"steps": 4, "warmup": 2, "B": 2}
    exec("#" + training, page)
    torch.manual_seed(1)
    optimizer = make_optimizer(model, config.train)
    for step in range(4):
        batch = page["train"][torch.randint(len(page["train"]), (2,))]
        train_step(model, optimizer, batch, config.train, step)
    torch.testing.assert_close(page["weights"], [*model.parameters()])
    # 120 characters, 10 samples, with which they exceed a context, and a newline
    assert len(capsys.readouterr().out) == 131
