"""Weights along the way: at the right steps, within the cap, and the right ones."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from common.errors import UserError
from model.config import ModelConfig
from model.gpt import GPT
from run.snapshots import find_snapshots, load_snapshot, save_snapshot, snapshot_steps
from training.config import TrainConfig

TINY = ModelConfig(block_size=8, n_layer=1, n_head=1, n_embd=8)


@given(st.integers(1, 100_000), st.integers(0, 30), st.integers(1, 10**8))
def test_steps_are_few_and_fit_the_cap(max_steps: int, count: int, parameters: int) -> None:
    config = TrainConfig(max_steps=max_steps, snapshots=count)
    steps = snapshot_steps(config, parameters)
    assert len(steps) <= count and steps == sorted(set(steps))
    assert len(steps) * 2 * parameters <= 64e6
    assert not steps or steps[-1] == max_steps
    assert len(steps) < 2 or steps[0] == 0


def test_steps_by_hand() -> None:
    config = TrainConfig(max_steps=1000, snapshots=5)
    assert snapshot_steps(config, 1) == [0, 1, 10, 100, 1000]
    assert snapshot_steps(replace(config, snapshots=1), 1) == [1000]
    assert snapshot_steps(replace(config, snapshots=2), 1) == [0, 1000]
    assert snapshot_steps(replace(config, snapshots=0), 1) == []
    assert snapshot_steps(replace(config, snapshot_mb=2.5), 10**6) == [1000]


@given(st.integers(1, 500), st.integers(1, 500), st.integers(0, 20), st.integers(1, 10**7))
def test_a_longer_run_keeps_to_the_cap_too(
    first: int, more: int, count: int, parameters: int
) -> None:
    """Also in a run that is stopped, or lengthened, and gone on with."""
    config = TrainConfig(max_steps=first, snapshots=count)
    whole = snapshot_steps(config, parameters)
    for stopped in (first // 2, first):
        taken = [step for step in whole if step <= stopped]
        resumed = snapshot_steps(config, parameters, stopped, taken)
        assert sorted({*taken, *resumed}) == whole
    longer = replace(config, max_steps=first + more)
    added = snapshot_steps(longer, parameters, first, whole)
    assert len({*whole, *added}) <= count


def test_weights_come_back_in_half_precision(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, other = GPT(TINY, 5), GPT(TINY, 5)
    with torch.no_grad():
        model.token_embedding.weight[0, 0] = 1e9
    save_snapshot(tmp_path, 7, model)
    save_snapshot(tmp_path, 12, model)
    (tmp_path / "snapshots" / "notes.safetensors").write_text("someone's")
    found = find_snapshots(tmp_path)
    assert list(found) == [7, 12]
    load_snapshot(other, found[7])
    for (name, kept), weight in zip(other.named_parameters(), model.parameters(), strict=True):
        most = torch.finfo(torch.float16).max
        assert torch.equal(kept, weight.detach().clamp(-most, most).half().float()), name


def test_another_models_snapshot_is_refused(tmp_path: Path) -> None:
    save_snapshot(tmp_path, 1, GPT(TINY, 5))
    path = find_snapshots(tmp_path)[1]
    with pytest.raises(UserError, match="does not fit"):
        load_snapshot(GPT(TINY, 6), path)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(UserError, match="damaged"):
        load_snapshot(GPT(TINY, 5), path)
