"""A checkpoint is whole or absent, loads strictly, and runs no code."""

import dataclasses
import json
import os
import pickle
import re
import struct
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save

from common.errors import UserError
from model.config import ModelConfig
from model.gpt import GPT
from run.checkpoint import (
    FORMAT,
    Header,
    load_checkpoint,
    load_training,
    load_weights,
    model_tensors,
    optimizer_tensors,
    read_header,
    refuse_not_finite,
    save_checkpoint,
    training_tensors,
)
from training.config import TrainConfig
from training.optim import Optimizer

HEADER = Header(
    config={"a": 1},
    tokenizer={"kind": "char", "chars": "aé\ud800"},
    corpus={},
    step=7,
    seconds=1.5,
    train_loss=1.25,
    evaluated=0,
    val_loss=None,
    best_val_loss=2.0,
    evals_since_best=0,
    device="cpu",
    processor="AVX2",
    threads=2,
    processes=1,
    precision="float32",
    torch="2.13.0",
)


def make(seed: int = 0, kind: Literal["muon", "adamw"] = "muon") -> tuple[GPT, Optimizer]:
    torch.manual_seed(seed)
    size = ModelConfig(n_embd=8, n_head=2, n_layer=1, block_size=4, positions="learned")
    model = GPT(dataclasses.replace(size, zero_init=False), 5)
    return model, Optimizer(model, TrainConfig(optimizer=kind))


def step(model: GPT, optimizer: Optimizer) -> None:
    model(torch.tensor([[1, 2, 3]])).square().sum().backward()
    optimizer.step(1.0)
    model.zero_grad()


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    model, optimizer = make()
    step(model, optimizer)
    path = tmp_path / "last.safetensors"
    save_checkpoint(path, training_tensors(model, optimizer), HEADER)
    return path


@pytest.mark.parametrize("kind", ["muon", "adamw"])
def test_everything_comes_back(tmp_path: Path, kind: Literal["muon", "adamw"]) -> None:
    model, optimizer = make(kind=kind)
    step(model, optimizer)
    path = tmp_path / "last.safetensors"
    save_checkpoint(path, training_tensors(model, optimizer), HEADER)
    drawn = torch.rand(3)
    other_model, other_optimizer = make(seed=1, kind=kind)
    header, tensors = load_checkpoint(path)
    load_training(other_model, other_optimizer, tensors, path)
    assert header == HEADER
    other_state = optimizer_tensors(other_optimizer)
    for name, tensor in optimizer_tensors(optimizer).items():
        assert torch.equal(tensor, other_state[name]), name
        assert tensor.any(), "nothing was learned, and so nothing compared"
    assert torch.equal(torch.rand(3), drawn), "dropout would draw other numbers"
    for a, b in ((model, optimizer), (other_model, other_optimizer)):
        step(a, b)
    for (name, p), q in zip(model.named_parameters(), other_model.parameters(), strict=True):
        assert torch.equal(p, q), name
    assert [path.name for path in tmp_path.iterdir()] == ["last.safetensors"]


def test_a_failed_write_leaves_the_checkpoint_before(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = saved.read_bytes()

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError, match=r"could not write .* No space left"):
        save_checkpoint(saved, model_tensors(make(1)[0]), HEADER)
    assert saved.read_bytes() == before
    assert [path.name for path in saved.parent.iterdir()] == ["last.safetensors"]


@given(st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200)
def test_a_flipped_bit_anywhere_is_found(saved: Path, data: st.DataObject) -> None:
    """But where it says nothing, as between words of the header."""
    path = saved.with_name("flipped")
    content = bytearray(saved.read_bytes())
    place = data.draw(st.integers(0, len(content) - 1))
    content[place] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(content)
    try:
        header, tensors = load_checkpoint(path)
    except UserError as error:
        assert re.search(r"flipped is (damaged|not a file of this version)", str(error))
        return
    whole = load_checkpoint(saved)[1]
    assert header == HEADER and tensors.keys() == whole.keys()
    assert all(torch.equal(tensors[name], whole[name]) for name in whole)


@given(st.floats(0, 1, exclude_max=True))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_cut_anywhere_it_is_damaged(saved: Path, share: float) -> None:
    path = saved.with_name("cut")
    path.write_bytes(saved.read_bytes()[: int(share * saved.stat().st_size)])
    with pytest.raises(UserError, match="cut is damaged"):
        load_checkpoint(path)


@pytest.mark.parametrize("name", ["model.head.weight", "optimizer.head.weight.exp_avg"])
@pytest.mark.parametrize("value", [torch.inf, -torch.inf, torch.nan])
def test_what_is_not_finite_is_refused(saved: Path, name: str, value: float) -> None:
    tensors = load_checkpoint(saved)[1]
    refuse_not_finite(tensors)
    tensors[name][0, 0] = value
    with pytest.raises(FloatingPointError, match=f"{name} is no longer finite"):
        refuse_not_finite(tensors)


class Bomb:
    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (Path("exploded"),)


def test_damaged_and_foreign_files_are_one_clear_line(workplace: Path, saved: Path) -> None:
    whole = saved.read_bytes()
    foreign = save({"x": torch.zeros(1)})
    huge_header = struct.pack("<Q", 1 << 60) + b"{}"
    header = json.dumps(dataclasses.asdict(HEADER))
    lost = {"format": FORMAT}
    wrong = {"format": FORMAT, "header": header.replace('"step": 7', '"step": "7"')}
    missing = {"format": FORMAT, "header": header.replace('"step"', '"stop"')}
    contents = [
        whole[: len(whole) // 2],
        whole[:4],
        b"",
        foreign,
        huge_header,
        pickle.dumps(Bomb()),
    ]
    contents += [save({"x": torch.zeros(1)}, meta) for meta in (lost, wrong, missing)]
    for content in contents:
        saved.write_bytes(content)
        with pytest.raises(
            UserError, match=r"last.safetensors is (damaged|not a file of this version)"
        ):
            load_checkpoint(saved)
    assert not Path("exploded").exists()
    with pytest.raises(UserError, match="there is no absent"):
        load_checkpoint(Path("absent"))


def test_a_header_is_read_strictly() -> None:
    plain = dataclasses.asdict(HEADER)
    assert read_header(json.dumps(plain)) == HEADER
    changes: list[dict[str, Any]] = [{"step": 1.5}, {"val_loss": "low"}, {"config": []}, {"x": 1}]
    for change in changes:
        with pytest.raises(ValueError, match="header"):
            read_header(json.dumps(plain | change))


STATE = "optimizer.final_norm.weight.exp_avg"
MOMENTUM = "optimizer.blocks.0.attn.query.weight.momentum"


@pytest.mark.parametrize(
    ("name", "tensor", "message"),
    [
        ("model.final_norm.weight", None, "is absent, should be float32"),
        ("model.final_norm.weight", torch.zeros(9), r"is float32 \(9,\), should be float32 \(8,\)"),
        ("model.final_norm.weight", torch.zeros(8).half(), r"is float16 \(8,\), should be"),
        ("model.stranger", torch.zeros(8), "model.stranger is float32 .* should be absent"),
        (STATE, None, r"exp_avg is absent, should be float32 \(8,\)"),
        (STATE, torch.zeros(9), r"exp_avg is float32 \(9,\), should be float32 \(8,\)"),
        (STATE, torch.zeros(8).double(), r"exp_avg is float64 \(8,\), should be float32"),
        (MOMENTUM, None, r"momentum is absent, should be float32 \(8, 8\)"),
        (MOMENTUM, torch.zeros(64), r"momentum is float32 \(64,\), should be float32 \(8, 8\)"),
        (f"{MOMENTUM}s", torch.zeros(8, 8), r"momentums is float32 \(8, 8\), should be absent"),
        ("optimizer.stranger.step", torch.zeros(()), r"step is float32 \(\), should be absent"),
        ("generator.cpu", None, "random generator"),
        ("generator.cpu", torch.zeros(3), "random generator"),
    ],
)
def test_tensors_that_do_not_fit_are_named(
    saved: Path, name: str, tensor: torch.Tensor | None, message: str
) -> None:
    model, optimizer = make()
    _, tensors = load_checkpoint(saved)
    if tensor is None:
        del tensors[name]
    else:
        tensors[name] = tensor
    before = torch.get_rng_state()
    with pytest.raises(UserError, match=message) as error:
        load_training(model, optimizer, tensors, saved)
    assert name in str(error.value) or name == "generator.cpu"
    assert str(saved) in str(error.value) and "\n" not in str(error.value)
    assert torch.equal(torch.get_rng_state(), before)


def test_what_one_optimizer_remembers_is_nothing_to_the_other(saved: Path) -> None:
    _, tensors = load_checkpoint(saved)
    with pytest.raises(UserError, match=r"optimizer\.blocks.* should be"):
        load_training(*make(kind="adamw"), tensors, saved)


def test_a_checkpoint_from_before_the_first_step_goes_on_too(tmp_path: Path) -> None:
    model, optimizer = make()
    path = tmp_path / "last.safetensors"
    save_checkpoint(path, training_tensors(model, optimizer), HEADER)
    other_model, other_optimizer = make(seed=1)
    step(other_model, other_optimizer)
    load_training(other_model, other_optimizer, load_checkpoint(path)[1], path)
    assert not any(tensor.any() for tensor in optimizer_tensors(other_optimizer).values())


def test_weights_alone_load_without_the_rest(saved: Path) -> None:
    model, _ = make(1)
    _, tensors = load_checkpoint(saved)
    load_weights(model, tensors, saved)
    assert torch.equal(model.get_parameter("final_norm.weight"), tensors["model.final_norm.weight"])
