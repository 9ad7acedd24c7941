"""A run that anyone may have made is opened, or refused in one line, by every command."""

import dataclasses
import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

import study
import train
from common.errors import UserError
from configs.load import Config
from data.tokenizer import CharTokenizer
from model.config import ModelConfig
from model.gpt import GPT
from run.checkpoint import (
    FORMAT,
    Header,
    model_tensors,
    open_run,
    read_tensors,
    save_checkpoint,
    write_tensors,
)
from tests.conftest import DEBUG
from tests.run.conftest import COMMANDS, Errors
from tests.run.test_resume import MACHINE
from training.state import TrainState

CPU = torch.device("cpu")
MODEL = ModelConfig(n_layer=3, n_head=2, n_embd=12, block_size=7, dropout=0.5, attn_dropout=0.5)
CHARS = "abcde"
LOADERS = COMMANDS[:-1]  # the last needs no model


def write(
    run: Path, name: str, step: int, start: Any = 3, config: ModelConfig = MODEL, **state: Any
) -> GPT:
    """A checkpoint of a model of its own."""
    torch.manual_seed(step)
    model = GPT(dataclasses.replace(config, zero_init=False), len(CHARS))
    header = Header(
        Config(model=model.config),
        CharTokenizer(CHARS).to_dict(),
        {"start_token": start, "sha256": "0"},
        MACHINE,
        TrainState(step=step, train_loss=1.0, **state),
    )
    save_checkpoint(run / f"{name}.safetensors", model_tensors(model), header)
    return model


def test_best_and_last_are_what_is_asked_for(tmp_path: Path) -> None:
    write(tmp_path, "last", 9, last_eval_step=9, val_loss=2.25, best_val_loss=1.5)
    assert open_run(tmp_path).header.state.step == 9, "there is no best one yet"
    write(tmp_path, "best", 5)
    best, default, last = open_run(tmp_path, "best"), open_run(tmp_path), open_run(tmp_path, "last")
    assert best.path == default.path == tmp_path / "best.safetensors"
    assert best.describe() == f"{tmp_path}/best.safetensors, step 5, not evaluated yet"
    assert last.describe() == f"{tmp_path}/last.safetensors, step 9, validation loss 2.2500"
    assert last.config.model == dataclasses.replace(MODEL, zero_init=False)
    assert last.tokenizer == CharTokenizer(CHARS)
    (tmp_path / "last.safetensors").unlink()
    assert open_run(tmp_path).header.state.step == 5
    with pytest.raises(UserError, match=r"there is no .*/last.safetensors"):
        open_run(tmp_path, "last")


@pytest.mark.parametrize(
    "choices",
    [
        {"positions": "rotary", "norm": "rmsnorm", "qk_norm": True},
        {"positions": "learned", "bias": True, "tie_embeddings": True, "qk_norm": False},
        {"positions": "none", "activation": "swiglu", "ngrams": 3},
    ],
    ids=lambda choices: choices["positions"],
)
def test_its_model_computes_what_was_saved_and_drops_nothing(
    tmp_path: Path, choices: dict[str, Any]
) -> None:
    original = write(tmp_path, "last", 3, config=dataclasses.replace(MODEL, **choices)).eval()
    model = open_run(tmp_path).model(CPU, batch_size=2)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "last.safetensors").rename(tmp_path / "elsewhere" / "last.safetensors")
    assert open_run(tmp_path / "elsewhere").tokenizer.decode([3, 0]) == "da", "it needs no more"
    tokens = torch.tensor([[0, 1, 2, 3, 4], [4, 4, 3, 0, 1]])
    assert torch.equal(model(tokens), original(tokens))
    assert torch.equal(model(tokens), model(tokens)) and not model.training


def test_no_weight_is_drawn_or_copied_to_be_loaded(tmp_path: Path) -> None:
    write(tmp_path, "last", 3)
    opened, generator = open_run(tmp_path), torch.get_rng_state()
    model = opened.model(CPU)
    assert torch.equal(torch.get_rng_state(), generator)
    for name, weight in model.named_parameters():
        assert weight.data_ptr() == opened.tensors[f"model.{name}"].data_ptr()
        assert weight.requires_grad


def test_what_does_not_fit_is_refused_before_it_takes_memory(tmp_path: Path) -> None:
    write(tmp_path, "last", 3)
    opened = open_run(tmp_path)
    with pytest.raises(UserError, match=r"a batch of 9+ with --model.block_size 7 would need"):
        opened.model(CPU, batch_size=10**12 - 1)
    wide = dataclasses.replace(opened.config.model, n_embd=100_000, n_layer=50)
    for model in (wide, dataclasses.replace(opened.config.model, n_layer=2)):
        other = dataclasses.replace(opened, config=Config(model=model))
        for refuse in (other.check_weights, lambda other=other: other.model(CPU)):
            with pytest.raises(UserError, match=r"does not fit its own config: model\.blocks\."):
                refuse()


def test_generation_starts_from_a_token_that_there_is(tmp_path: Path) -> None:
    for place in (0, 4):
        write(tmp_path, "last", 3, place)
        assert open_run(tmp_path).start_token == place
    for token in (5, -1, True, None, "a", 1.0):
        write(tmp_path, "last", 3, token)
        with pytest.raises(UserError, match="does not say where to start; give a --prompt"):
            _ = open_run(tmp_path).start_token


# --- a folder from a stranger --------------------------------------------------------------------


class Bomb:
    """Pickled, it writes a file when it is opened."""

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (Path("exploded"),)


def test_a_pickle_in_place_of_any_file_is_not_run(run: Path, errors: Errors) -> None:
    """Which `pickle.load` and `torch.load` would both run; what a command needs is damaged."""
    measured = (run / "metrics.jsonl").read_bytes()
    for main, argv in LOADERS:
        for name in ("config.yaml", "run.json", "metrics.jsonl", "events.out.tfevents.1"):
            (run / name).write_bytes(pickle.dumps(Bomb()))
        (run / "snapshots" / "00000000.safetensors").write_bytes(pickle.dumps(Bomb()))
        assert main(argv) == 0, argv
    (run / "metrics.jsonl").write_bytes(pickle.dumps(Bomb()))
    (run / "config.yaml").write_bytes(pickle.dumps(Bomb()))
    unmeasured, no_config = errors([COMMANDS[-1], (train.main, ["runs/a/config.yaml"])])
    assert "was never evaluated" in unmeasured and "config.yaml is not a config" in no_config
    (run / "metrics.jsonl").write_bytes(measured)
    for path in run.glob("*.safetensors"):
        path.write_bytes(pickle.dumps(Bomb()))
    for (_, argv), error in zip(COMMANDS, errors(COMMANDS), strict=True):
        needed = "last" if argv[0].startswith("--resume") else "best"
        assert f"{needed}.safetensors is damaged" in error
    assert not Path("exploded").exists()


def forge(run: Path, **changes: Any) -> None:
    """Checkpoints that are whole, and say something else: `model__n_layer`, `tokenizer__chars`."""
    for path in (run / "best.safetensors", run / "last.safetensors"):
        text, tensors = read_tensors(path, FORMAT)
        plain = json.loads(text)
        for key, value in changes.items():
            part, _, field = key.partition("__")
            section = plain["config"][part] if part in plain["config"] else plain[part]
            section[field] = value
        write_tensors(path, tensors, FORMAT, json.dumps(plain))


FORGED: list[tuple[dict[str, Any], str]] = [
    ({"model__n_layer": 50}, "does not fit its own config"),
    (
        {"model__n_layer": 10**15},
        "config.model.n_layer must be less than or equal to 1000, got 1000000000000000",
    ),
    ({"model__block_size": 10**8}, "would need|--model.block_size|block_size + 1"),
    ({"model__n_head": 3}, "must be divisible by n_head 3"),
    ({"model__n_layer": "9" * 100_000}, "config.model.n_layer must be a valid integer"),
    ({"data__source": "[" * 100_000}, "File name too long: [["),
    ({"tokenizer__chars": "ab"}, "does not fit its own config|the model has never seen"),
    ({"tokenizer__chars": "aa"}, "not a description of a tokenizer"),
    ({"data__tokenizer": "byte"}, "its tokenizer is not the one that its config names"),
]


@pytest.mark.parametrize(("changes", "message"), FORGED, ids=lambda value: str(value)[:40])
def test_a_forged_header_is_one_line(
    run: Path, errors: Errors, changes: dict[str, Any], message: str
) -> None:
    forge(run, **changes)
    needs_text = "data__source" in changes
    for error in errors(LOADERS[:3] if needs_text else LOADERS):
        assert any(part in error for part in message.split("|")), error


def test_a_run_on_repeated_strings_may_lie_about_its_vocabulary(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--data.source=repeat", "--data.repeat_max_period=16", "--train.max_steps=2"]
    assert train.main([DEBUG, *flags, "--data.repeat_vocab=20", "--run=a"]) == 0
    for vocabulary in (2, 17, 50_000):
        lie = {"data__repeat_vocab": vocabulary, "data__repeat_max_period": min(16, vocabulary)}
        forge(Path("runs/a"), **lie, data__repeat_min_period=2)
        for verb in ("trace", "heads", "compare", "verify"):
            if code := study.main([verb, "a"]):
                said = capsys.readouterr().err
                assert code == 2 and "--source repeat has characters" in said
