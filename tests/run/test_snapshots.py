"""Weights along the way: at the right steps, within the room for them, and the right ones."""

import dataclasses
from pathlib import Path

import pytest
import torch

from common.errors import UserError
from model.config import ModelConfig
from model.gpt import GPT
from run.snapshots import find_snapshots, load_snapshot, save_snapshot, snapshot_steps
from tests.run.test_checkpoint import HEADER
from training.config import TrainConfig
from training.state import TrainState

TINY = ModelConfig(block_size=8, n_layer=1, n_head=1, n_embd=8)


def test_steps_by_hand() -> None:
    config = TrainConfig(max_steps=1000, snapshots=5)
    assert snapshot_steps(config, 1) == [0, 16, 125, 422, 1000]
    for count, steps in ((0, []), (1, [1000]), (2, [0, 1000])):
        assert snapshot_steps(dataclasses.replace(config, snapshots=count), 1) == steps
    for megabytes, steps in ((8.0, [0, 37, 296, 1000]), (2.5, [1000]), (1.9, [])):
        assert snapshot_steps(dataclasses.replace(config, snapshot_mb=megabytes), 10**6) == steps


def test_weights_come_back_in_half_precision(tmp_path: Path) -> None:
    models, other = {}, GPT(TINY, 5)
    for step in (0, 12345):
        header = dataclasses.replace(HEADER, state=TrainState(step, train_loss=1.0))
        models[step] = model = GPT(TINY, 5)
        with torch.no_grad():
            model.token_embedding.weight[0, 0] = 1e9
        save_snapshot(tmp_path, model, header)
    (tmp_path / "snapshots" / "notes.safetensors").write_text("someone's")
    found = find_snapshots(tmp_path)
    assert list(found) == [0, 12345]
    for step, path in found.items():
        load_snapshot(other, path)
        assert other.token_embedding.weight[0, 0] == torch.finfo(torch.float16).max
        for name, weight in models[step].named_parameters():
            rounded = weight.clamp(-65504, 65504).half().float()
            assert torch.equal(other.get_parameter(name), rounded), name
    with pytest.raises(UserError, match=r"head.weight is float32 \(5, 8\), should be .* \(6, 8\)"):
        load_snapshot(GPT(TINY, 6), found[0])
    with torch.no_grad():
        model.token_embedding.weight[3] = torch.nan
    with pytest.raises(FloatingPointError, match=r"model.token_embedding.weight is not finite"):
        save_snapshot(tmp_path, model, HEADER)
    assert list(find_snapshots(tmp_path)) == [0, 12345]
