"""A checkpoint loads exactly what was saved, or is rejected with a one-line error."""

import dataclasses
import json
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save, save_file
from torch import Tensor

from common.errors import UserError
from configs.config import Config, ModelConfig, TrainConfig
from data.corpus import Corpus
from data.tokenizer import CharTokenizer
from model.gpt import GPT
from tests.configs.test_load import unusual
from tests.conftest import make_run
from training.checkpoint import (
    FORMAT,
    Header,
    check_finite,
    checksum,
    half_precision,
    load_checkpoint,
    load_snapshot,
    model_tensors,
    open_run,
    save_checkpoint,
)
from training.folder import find_snapshots
from training.machine import Machine
from training.state import TrainState

CHARS = "aé日de"
MODEL = ModelConfig(
    n_layer=3, n_head=2, n_embd=12, block_size=7, dropout=0.5, attn_dropout=0.5, zero_init=False
)
HEADER = Header(
    Config(model=MODEL, train=TrainConfig(max_steps=50)),
    CharTokenizer(CHARS).to_dict(),
    Corpus("a text", start_token=3, sha256="0"),
    Machine("cpu", "AVX2", threads=2, processes=1, precision="float32", torch="2.13.0"),
    TrainState(7, 1.5, 1.25, last_eval_step=6, val_loss=2.25, best_val_loss=2.0),
)
TENSORS = {
    "weight": torch.arange(6.0).view(2, 3).T,  # not contiguous
    "half": torch.tensor([0.5, -2.0]).half(),
    "generator": torch.tensor([0, 255], dtype=torch.uint8),
    "step": torch.tensor(3.0),
    "nothing": torch.zeros(0, 4),
}


def make(seed: int = 0, config: ModelConfig = MODEL) -> GPT:
    torch.manual_seed(seed)
    return GPT(config, len(CHARS))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    save_checkpoint(tmp_path / "last.safetensors", TENSORS, HEADER)
    return tmp_path / "last.safetensors"


def save_forged(
    path: Path, place: str, value: Any, tensors: dict[str, Tensor] | None = None
) -> None:
    """Save a checkpoint with another value in its header, at a place such as "state.step"."""
    plain = section = dataclasses.asdict(HEADER)
    *sections, name = place.split(".")
    for each in sections:
        section = section[each]
    section[name] = value
    text, tensors = json.dumps(plain), tensors or {}
    metadata = {"format": FORMAT, "header": text, "checksum": checksum(text, tensors)}
    save_file(tensors, path, metadata)


# --- the file ------------------------------------------------------------------------------------


def test_checkpoint_round_trips_exactly(path: Path) -> None:
    header, tensors = load_checkpoint(path)
    assert header == HEADER
    torch.testing.assert_close(tensors, TENSORS, rtol=0, atol=0)
    with open(path, "r+b") as file:
        file.write(bytes(path.stat().st_size))  # the tensors are copies, not memory-mapped
    torch.testing.assert_close(tensors, TENSORS, rtol=0, atol=0)


NEEDED = ("header", "checksum")


def test_damaged_or_other_file_is_rejected_in_one_line(path: Path) -> None:
    whole, x = path.read_bytes(), {"x": torch.zeros(1)}
    with safe_open(path, "pt") as file:
        metadata = file.metadata()
    damaged = [whole[:length] for length in range(0, len(whole), 7)]
    damaged += [b"{}", struct.pack("<Q", 1 << 60) + b"{}", b"\x80\x04\x95 a pickle"]
    damaged += [save(x, {k: v for k, v in metadata.items() if k != gone}) for gone in NEEDED]
    other = [save(x), save(x, metadata | {"format": "glassgpt 2"})]
    for content in (*damaged, *other):
        path.write_bytes(content)
        kind = "is not a checkpoint of this" if content in other else "cannot be opened: "
        with pytest.raises(UserError, match=f"^{path} {kind}.*$"):
            load_checkpoint(path)


def test_changed_number_is_rejected(path: Path) -> None:
    """In any tensor, or in the header."""
    whole = path.read_bytes()
    step = whole.index(b'"step\\": 7') + len(b'"step\\": ')
    first = len(whole) - sum(tensor.nbytes for tensor in TENSORS.values())
    for place in (step, first, len(whole) - 1):
        changed = bytearray(whole)
        changed[place] ^= 1
        path.write_bytes(changed)
        with pytest.raises(UserError, match="cannot be opened: its checksum is wrong"):
            load_checkpoint(path)


def test_missing_field_gets_its_default_and_unknown_is_rejected(path: Path) -> None:
    """A run that was made before a field was added still opens."""
    whole = unusual()
    for section, values in dataclasses.asdict(whole).items():
        for name in {*values} - {"n_head", "batch_size"}:  # the default must fit other fields
            others = {other: value for other, value in values.items() if other != name}
            save_forged(path, "config", dataclasses.asdict(whole) | {section: others})
            default = getattr(getattr(Config(), section), name)
            part = dataclasses.replace(getattr(whole, section), **{name: default})
            expected = dataclasses.replace(whole, **{section: part})
            assert load_checkpoint(path)[0].config == expected
    for place in ("odd", "config.odd", "config.model.odd", "config.train.odd", "state.odd"):
        save_forged(path, place, 1)
        with pytest.raises(UserError, match=f"cannot be opened: {place} is unknown"):
            load_checkpoint(path)


def test_forged_header_is_rejected_with_a_short_message(path: Path) -> None:
    for place, value, message in (
        ("config.model.n_layer", 10**15, "config.model.n_layer must be less"),
        ("config.data.source", "\ud800", "Invalid JSON"),
        ("tokenizer", {"kind": "word"}, "word"),
        ("corpus.start_token", len(CHARS), "start_token"),
        ("state", json.loads("[" * 900 + "]" * 900), "recursion limit"),
    ):
        save_forged(path, place, value)
        with pytest.raises(UserError, match=f"cannot be opened: .*{message}") as error:
            open_run(path.parent)
        assert len(str(error.value)) < 500


# --- tensors -------------------------------------------------------------------------------------


def test_non_finite_number_is_found_anywhere(path: Path) -> None:
    long = torch.zeros(70)  # several SIMD vectors and a remainder
    check_finite(TENSORS | {"long": long})
    for value in (torch.inf, -torch.inf, torch.nan):
        for place in range(70):
            with pytest.raises(FloatingPointError, match=r"^long is not finite"):
                check_finite(TENSORS | {"long": long.index_fill(0, torch.tensor(place), value)})
        save_checkpoint(path, TENSORS | {"weight": torch.tensor(value)}, HEADER)
        with pytest.raises(UserError, match="cannot be opened: weight is not finite"):
            load_checkpoint(path)


# --- snapshots -----------------------------------------------------------------------------------


def test_snapshots_round_trip_in_half_precision(tmp_path: Path) -> None:
    model, other = make(1), make(2)
    model.token_embedding.weight.data[0, 0] = 1e9
    for step in (12345, 0):
        path = tmp_path / "snapshots" / f"{step:08d}.safetensors"
        save_checkpoint(path, half_precision(model), HEADER)
    for stem in ("notes", "00000000 (1)", "00000001-checkpoint"):
        path.with_stem(stem).write_text("not a snapshot")
    assert list(find_snapshots(tmp_path)) == [0, 12345]
    load_snapshot(other, path)
    for name, weight in model.named_parameters():
        rounded = weight.clamp(-65504, 65504).half().float()
        assert torch.equal(other.get_parameter(name), rounded), name
    with pytest.raises(
        UserError, match=r"head.weight is torch.float32 \(5, 12\), expected .* \(6, 12"
    ):
        load_snapshot(GPT(MODEL, 6), path)


# --- opening a run -------------------------------------------------------------------------------


def test_opened_model_computes_the_same_logits(path: Path) -> None:
    """The last checkpoint is opened in place of the best one only if there is none."""
    config = dataclasses.replace(MODEL, positions="learned", tie_embeddings=True, ngrams=3)
    header = dataclasses.replace(HEADER, config=Config(model=config))
    tokens = torch.tensor([[0, 1, 2, 3, 4], [4, 4, 3, 0, 1]])
    last, best = make(1, config).eval(), make(2, config).eval()
    for name, original in (("last", last), ("best", best)):
        save_checkpoint(path.with_stem(name), model_tensors(original), header)
        model = open_run(path.parent).model()
        assert not model.training and torch.equal(model(tokens), original(tokens))
    assert torch.equal(open_run(path.parent, "last").model()(tokens), last(tokens))
    half = {name: tensor.half() for name, tensor in model_tensors(best).items()}
    for layers, tensors, message in (
        (4, model_tensors(best), r"model.blocks.3\S* is absent, expected torch.float32 \(6,\)"),
        (2, model_tensors(best), r"model.blocks.2\S* is torch.float32 \(6,\), expected absent"),
        (3, half, r"\S* is torch.float16 .*, expected torch.float32"),
    ):
        save_forged(path, "config.model", dataclasses.asdict(config) | {"n_layer": layers}, tensors)
        with pytest.raises(UserError, match=f"not match its config: {message}"):
            open_run(path.parent, "last").model()


def test_validation_loss_of_an_earlier_step_names_that_step(tmp_path: Path) -> None:
    saved = open_run(make_run(tmp_path), "last")
    state = dataclasses.replace(saved.header.state, step=70, val_loss=2.0, last_eval_step=60)
    for step, said in ((70, " at step 60"), (60, "")):
        header = dataclasses.replace(saved.header, state=dataclasses.replace(state, step=step))
        about = str(dataclasses.replace(saved, header=header))
        assert about.endswith(f"step {step}, validation loss 2.0000 nats/char{said}")
