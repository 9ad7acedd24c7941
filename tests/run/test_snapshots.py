"""Weights along the way: at the right steps, within the room for them, and the right ones."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from common.errors import UserError
from model.config import ModelConfig
from model.gpt import GPT
from run.checkpoint import read_tensors, write_tensors
from run.snapshots import FORMAT, Snapshots, find_snapshots, load_snapshot, snapshot_steps
from training.config import TrainConfig

TINY = ModelConfig(block_size=8, n_layer=1, n_head=1, n_embd=8)


def test_steps_by_hand() -> None:
    config = TrainConfig(max_steps=1000, snapshots=5)
    assert snapshot_steps(config, 1) == [0, 16, 125, 422, 1000]
    assert snapshot_steps(config, 1, at=16, taken=[0]) == [16, 125, 422, 1000]
    assert snapshot_steps(config, 1, at=125, taken=[0, 16, 125, 500]) == [422, 1000]
    assert snapshot_steps(config, 1, at=10, taken=[0, 1, 2, 3, 4]) == []
    assert snapshot_steps(replace(config, snapshots=2), 1) == [0, 1000]
    assert snapshot_steps(replace(config, snapshots=1), 1) == [1000]
    assert snapshot_steps(replace(config, snapshot_mb=8), 10**6) == [0, 37, 296, 1000]
    assert snapshot_steps(replace(config, snapshot_mb=2.5), 10**6) == [1000]


@given(st.integers(1, 500), st.integers(0, 500), st.integers(0, 20), st.integers(1, 10**7))
def test_they_keep_to_their_number_and_their_room(
    first: int, more: int, count: int, parameters: int
) -> None:
    """Also in a run that is stopped and resumed, or made longer."""
    config = TrainConfig(max_steps=first, snapshots=count)
    whole = snapshot_steps(config, parameters)
    assert whole == sorted(set(whole)) and len(whole) <= count
    assert len(whole) * 2 * parameters <= 64e6
    assert not whole or whole[-1] == first
    assert len(whole) < 2 or whole[0] == 0
    for stopped in (first // 2, first):
        taken = [step for step in whole if step <= stopped]
        assert sorted({*taken, *snapshot_steps(config, parameters, stopped, taken)}) == whole
    longer = replace(config, max_steps=first + more)
    kept = {*whole, *snapshot_steps(longer, parameters, first, whole)}
    assert len(kept) <= count and len(kept) * 2 * parameters <= 64e6


def test_they_are_taken_when_due_and_come_back_in_half_precision(tmp_path: Path) -> None:
    config = TrainConfig(max_steps=9, snapshots=5)  # 0, 0, 1, 4, 9
    model, other, expected = GPT(TINY, 5), GPT(TINY, 5), {}
    Snapshots(tmp_path, model, config, 0, silent=True).save_if_due(0)
    assert find_snapshots(tmp_path) == {}, "another process takes them"
    snapshots = Snapshots(tmp_path, model, config, 0, silent=False)
    for step in range(10):
        if step == 5:  # resumed
            snapshots = Snapshots(tmp_path, model, config, 5, silent=False)
        with torch.no_grad():
            model.token_embedding.weight.add_(1.0)
            model.token_embedding.weight[0, 0] = 1e9
        snapshots.save_if_due(step)
        expected[step] = model.token_embedding.weight.detach().clamp(-65504, 65504).half()
    (tmp_path / "snapshots" / "notes.safetensors").write_text("someone's")
    found = find_snapshots(tmp_path)
    assert list(found) == [0, 1, 4, 9]
    for step, path in found.items():
        load_snapshot(other, path)
        assert torch.equal(other.token_embedding.weight, expected[step].float()), step
    for name, weight in model.named_parameters():
        if name != "token_embedding.weight":
            assert torch.equal(other.get_parameter(name), weight.half().float()), name


def test_weights_that_are_not_finite_are_not_kept(tmp_path: Path) -> None:
    model = GPT(TINY, 5)
    with torch.no_grad():
        model.final_norm.weight[3] = torch.nan  # type: ignore[operator]
    with pytest.raises(FloatingPointError, match=r"model.final_norm.weight is not finite"):
        Snapshots(tmp_path, model, TrainConfig(), 0, silent=False).save_if_due(0)
    assert find_snapshots(tmp_path) == {}


def test_another_models_snapshot_is_refused(tmp_path: Path) -> None:
    Snapshots(tmp_path, GPT(TINY, 5), TrainConfig(), 0, silent=False).save_if_due(0)
    path = find_snapshots(tmp_path)[0]
    with pytest.raises(UserError, match=r"head.weight is float32 \(5, 8\), should be .* \(6, 8\)"):
        load_snapshot(GPT(TINY, 6), path)
    tensors = read_tensors(path, FORMAT)[1]
    write_tensors(path, tensors, "another kind")
    with pytest.raises(UserError, match="not a file of this version"):
        load_snapshot(GPT(TINY, 5), path)
