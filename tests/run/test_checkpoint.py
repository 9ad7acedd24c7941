"""A checkpoint is saved when there is something new; one that does not fit is refused by name.

That training resumes from it to the last bit is in tests/test_train.py.
"""

import dataclasses
import json
from pathlib import Path
from typing import Literal

import pytest
import torch
from torch import Tensor

from common.errors import UserError
from configs.load import Config
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
    write_tensors,
)
from training.config import TrainConfig
from training.optim import Optimizer
from training.processes import Processes
from training.runtime import Machine
from training.state import TrainState

MACHINE = Machine("cpu", "AVX2", threads=2, processes=1, precision="float32", torch="2.13.0")
STATE = TrainState(
    7, 1.5, 1.25, last_eval_step=6, val_loss=2.5, best_val_loss=2.0, evals_since_best=1
)
HEADER = Header(Config(), {"kind": "char", "chars": "aé"}, {"sha256": "0"}, MACHINE, STATE)


def make(seed: int = 0, kind: Literal["muon", "adamw"] = "muon") -> tuple[GPT, Optimizer]:
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


PLAIN = dataclasses.asdict(HEADER)
WRONG: list[tuple[str, str]] = [
    *((header, "") for header in ("", "[]", "null", "{}", "[" * 100_000)),
    ('{"config": ' + "[" * 100_000, ""),
    (json.dumps(PLAIN | {"config": []}), "config must be an object"),
    (json.dumps(PLAIN | {"machine": PLAIN["machine"] | {"processes": 0}}), "machine.processes"),
    (json.dumps(PLAIN | {"state": PLAIN["state"] | {"step": 5}}), "last_eval_step 6 must not"),
    (json.dumps(PLAIN | {"state": PLAIN["state"] | {"more": 1}}), "state.more is unknown"),
]


def test_a_header_that_is_none_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "last.safetensors"
    for header, message in WRONG:
        write_tensors(path, {}, FORMAT, header)
        with pytest.raises(UserError, match=f"last.safetensors is damaged: .*{message}") as error:
            load_checkpoint(path)
        assert len(str(error.value)) < 500
    write_tensors(path, {"model.x": torch.tensor(torch.nan)}, FORMAT, json.dumps(PLAIN))
    with pytest.raises(UserError, match=r"damaged: model.x is not finite"):
        load_checkpoint(path)


AVERAGE = "optimizer.final_norm.weight.exp_avg"
NO_STATE = "last.safetensors has no usable state of the random generator"
MISFITS: list[tuple[str, Tensor | None, str]] = [
    ("model.final_norm.weight", torch.zeros(9), r"float32 \(9,\), should be float32 \(12,\)"),
    (AVERAGE, None, rf"{AVERAGE} is absent, should be float32 \(12,\)"),
    ("optimizer.stranger.step", torch.zeros(()), r"float32 \(\), should be absent"),
    ("generator.cpu", None, NO_STATE),
    ("generator.cpu", torch.zeros(3), NO_STATE),
    ("generator.cpu", torch.zeros(3, dtype=torch.uint8), NO_STATE),
]


def test_tensors_that_do_not_fit_are_named(saved: Path) -> None:
    whole, before = load_checkpoint(saved)[1], torch.get_rng_state()
    for name, tensor, message in MISFITS:
        tensors = {k: v for k, v in (whole | {name: tensor}).items() if v is not None}
        with pytest.raises(UserError, match=message):
            load_training(*make(), tensors, saved)
    with pytest.raises(UserError, match=r"optimizer\.blocks.* should be"):
        load_training(*make(kind="adamw"), whole, saved)
    model, _ = make(1)
    load_weights(model, whole, saved)  # which needs nothing else
    for name, tensor in model_tensors(model).items():
        assert torch.equal(tensor, whole[name]), name
    torch.set_rng_state(before)


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
