"""Training resumes from a checkpoint to the last bit; one that does not fit is refused by name."""

import dataclasses
import json
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from torch import Tensor

from common.errors import UserError
from model.config import ModelConfig
from model.gpt import GPT
from run.checkpoint import (
    FORMAT,
    Checkpointer,
    Header,
    load_checkpoint,
    load_training,
    load_weights,
    model_tensors,
    optimizer_tensors,
    save_checkpoint,
    training_tensors,
)
from run.tensors import write_tensors
from training.config import TrainConfig
from training.optim import Optimizer
from training.processes import Processes
from training.runtime import Machine
from training.state import TrainState

MACHINE = Machine("cpu", "AVX2", threads=2, processes=1, precision="float32", torch="2.13.0")
STATE = TrainState(
    step=7,
    seconds=1.5,
    train_loss=1.25,
    evaluated=6,
    val_loss=2.5,
    best_val_loss=2.0,
    evals_since_best=1,
)
HEADER = Header({"a": 1}, {"kind": "char", "chars": "aé\ud800"}, {"sha256": "0"}, MACHINE, STATE)
Kind = Literal["muon", "adamw"]


def make(seed: int = 0, kind: Kind = "muon") -> tuple[GPT, Optimizer]:
    torch.manual_seed(seed)
    size = ModelConfig(n_embd=12, n_head=2, n_layer=3, block_size=4, positions="learned", ngrams=2)
    model = GPT(dataclasses.replace(size, zero_init=False, dropout=0.5), 5)
    return model, Optimizer(model, TrainConfig(optimizer=kind))


def step(model: GPT, optimizer: Optimizer) -> None:
    model(torch.tensor([[1, 2, 3]])).square().sum().backward()
    optimizer.step(1.0)
    model.zero_grad()


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    model, optimizer = make()
    step(model, optimizer)
    save_checkpoint(tmp_path / "last.safetensors", training_tensors(model, optimizer), HEADER)
    return tmp_path / "last.safetensors"


@pytest.mark.parametrize("kind", ["muon", "adamw"])
@pytest.mark.parametrize("steps", [0, 2])
def test_the_next_steps_are_the_same_to_the_last_bit(
    tmp_path: Path, kind: Kind, steps: int
) -> None:
    """Dropout draws the same; also from before the first step."""
    model, optimizer = make(kind=kind)
    for _ in range(steps):
        step(model, optimizer)
    path = tmp_path / "last.safetensors"
    save_checkpoint(path, training_tensors(model, optimizer), HEADER)
    step(model, optimizer)
    expected = training_tensors(model, optimizer)
    other_model, other_optimizer = make(seed=1, kind=kind)
    step(other_model, other_optimizer)
    header, tensors = load_checkpoint(path)
    assert header == HEADER
    load_training(other_model, other_optimizer, tensors, path)
    step(other_model, other_optimizer)
    found = training_tensors(other_model, other_optimizer)
    assert found.keys() == expected.keys()
    for name in expected:
        assert torch.equal(found[name], expected[name]), name
    learned = {n for n in expected if n.startswith("optimizer.")}
    assert learned and all(expected[n].any() for n in learned), "there was nothing to compare"


def test_every_field_of_a_header_is_checked(saved: Path) -> None:
    plain = dataclasses.asdict(HEADER)
    wrong: list[tuple[str, str, Any]] = [("", name, []) for name in plain]
    for section in ("machine", "state"):
        wrong += [(section, name, []) for name in (*plain[section], "more")]
    wrong += [("state", "step", 5), ("state", "step", 10**30), ("machine", "processes", 0)]
    for section, name, value in wrong:
        changed = json.loads(json.dumps(plain))
        (changed[section] if section else changed)[name] = value
        write_tensors(saved, {}, FORMAT, json.dumps(changed))
        with pytest.raises(UserError, match=r"last.safetensors is damaged: ") as error:
            load_checkpoint(saved)
        said = str(error.value)
        assert ("should have the fields" if name == "more" else name) in said and len(said) < 300


def test_a_header_that_is_no_header_is_refused(saved: Path) -> None:
    for header in ("", "[]", "null", "{}", "[" * 100_000, '{"config": ' + "[" * 100_000):
        write_tensors(saved, {}, FORMAT, header)
        with pytest.raises(UserError, match=r"last.safetensors is damaged: "):
            load_checkpoint(saved)
    write_tensors(saved, {"model.x": torch.tensor(torch.nan)}, FORMAT, json.dumps({}))
    with pytest.raises(UserError, match=r"damaged: model.x is not finite"):
        load_checkpoint(saved)


AVERAGE = "optimizer.final_norm.weight.exp_avg"
MISFITS: list[tuple[str, Tensor | None, str]] = [
    ("model.final_norm.weight", torch.zeros(9), r"float32 \(9,\), should be float32 \(12,\)"),
    (AVERAGE, None, r"absent, should be float32 \(12,\)"),
    ("optimizer.stranger.step", torch.zeros(()), r"float32 \(\), should be absent"),
    ("generator.cpu", None, "no usable state of the random generator"),
    ("generator.cpu", torch.zeros(3), "no usable state of the random generator"),
    ("generator.cpu", torch.zeros(3, dtype=torch.uint8), "no usable state of the random generator"),
]


@pytest.mark.parametrize(("name", "tensor", "message"), MISFITS)
def test_tensors_that_do_not_fit_are_named(
    saved: Path, name: str, tensor: Tensor | None, message: str
) -> None:
    tensors = load_checkpoint(saved)[1] | ({} if tensor is None else {name: tensor})
    if tensor is None:
        del tensors[name]
    before = torch.get_rng_state()
    with pytest.raises(UserError, match=message) as error:
        load_training(*make(), tensors, saved)
    said = str(error.value)
    assert (name in said or name == "generator.cpu") and str(saved) in said and "\n" not in said
    torch.set_rng_state(before)


def test_weights_load_without_the_rest_and_not_into_another_optimizer(saved: Path) -> None:
    with pytest.raises(UserError, match=r"optimizer\.blocks.* should be"):
        load_training(*make(kind="adamw"), load_checkpoint(saved)[1], saved)
    model, tensors = make(1)[0], load_checkpoint(saved)[1]
    load_weights(model, tensors, saved)
    for name, tensor in model_tensors(model).items():
        assert torch.equal(tensor, tensors[name]), name


class Two(Processes):
    """Two processes, of which the other's bytes are all 7."""

    def gather(self, state: Tensor) -> list[Tensor]:
        return [state, torch.full_like(state, 7)]


def test_every_process_has_a_generator_of_its_own(saved: Path) -> None:
    model, optimizer = make()
    tensors = training_tensors(model, optimizer, Two(0, 2))
    assert torch.equal(tensors["generator.cpu"], torch.get_rng_state())
    assert (tensors["generator.cpu.1"] == 7).all()
    torch.manual_seed(5)
    tensors["generator.cpu.1"] = torch.get_rng_state()
    for rank, seed in ((1, 5), (2, 6)):  # a third process was not there, and keeps its own
        torch.manual_seed(6)
        load_training(model, optimizer, tensors, saved, rank)
        assert torch.initial_seed() == seed


def test_a_checkpointer_saves_once_what_is_new(tmp_path: Path) -> None:
    model, optimizer = make()
    state, before = TrainState(), list[list[str]]()

    def flush() -> None:
        before.append(sorted(path.name for path in tmp_path.iterdir()))

    def header() -> Header:
        return dataclasses.replace(HEADER, state=state)

    save = Checkpointer(tmp_path, model, optimizer, Processes(), header, flush)
    last, best = tmp_path / "last.safetensors", tmp_path / "best.safetensors"
    save.save_last()
    assert before == [[]], "metrics are on the disk before the checkpoint"
    save.save_last()
    assert len(before) == 1, "nothing is new"
    state.step, state.train_loss = 3, 1.0
    step(model, optimizer)
    save.save_last()
    assert len(before) == 2 and save.saved == (3, 0)
    state.record(1.5)
    save.save_best()
    save.save_last()
    assert len(before) == 4, "an evaluation is new"
    for path, parts in ((last, {"model", "optimizer", "generator"}), (best, {"model"})):
        read, tensors = load_checkpoint(path)
        assert read == header() and {name.split(".")[0] for name in tensors} == parts
        for name, tensor in model_tensors(model).items():
            assert torch.equal(tensors[name], tensor), name
    whole = last.read_bytes()
    state.step = 4
    optimizer_tensors(optimizer)[AVERAGE][1] = torch.inf
    for processes in (Processes(), Two(1, 2)):
        save.processes = processes
        with pytest.raises(FloatingPointError, match=AVERAGE):
            save.save_last()
    assert last.read_bytes() == whole and len(before) == 4
    optimizer_tensors(optimizer)[AVERAGE][1] = 0.0
    best.unlink()
    save.save_last()
    save.save_best()
    assert save.saved == (4, 3) and last.read_bytes() == whole and not best.exists(), "only rank 0"
