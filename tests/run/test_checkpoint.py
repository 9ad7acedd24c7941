"""A checkpoint loads exactly what was saved, or is rejected with a one-line error."""

import dataclasses
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file, save, save_file

from common.errors import UserError
from configs.load import Config
from data.corpus import Corpus
from data.tokenizer import CharTokenizer
from model.config import ModelConfig
from model.gpt import GPT
from run.checkpoint import (
    FORMAT,
    Header,
    check_finite,
    copy_into,
    find_snapshots,
    half_precision,
    load_checkpoint,
    load_snapshot,
    model_tensors,
    open_run,
    save_checkpoint,
    snapshot_steps,
)
from training.config import TrainConfig
from training.runtime import Machine
from training.step import TrainState

CHARS = "aé日de"
MODEL = ModelConfig(
    n_layer=3, n_head=2, n_embd=12, block_size=7, dropout=0.5, attn_dropout=0.5, zero_init=False
)
STATE = TrainState(7, 1.5, 1.25, last_eval_step=6, val_loss=2.25, best_val_loss=2.0)
HEADER = Header(
    Config(model=MODEL),
    CharTokenizer(CHARS).to_dict(),
    Corpus("a text", start_token=3, sha256="0"),
    Machine("cpu", "AVX2", threads=2, processes=1, precision="float32", torch="2.13.0"),
    STATE,
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


def rewrite(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change the header of a checkpoint; the file remains intact."""
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata()
    tensors, plain = load_file(path), json.loads(metadata["header"])
    change(plain)
    header = json.dumps(plain)
    save_file(tensors, path, metadata | {"header": header})


# --- the file ------------------------------------------------------------------------------------


def test_checkpoint_round_trips_exactly(path: Path) -> None:
    header, tensors = load_checkpoint(path)
    assert header == HEADER
    torch.testing.assert_close(tensors, TENSORS, rtol=0, atol=0)
    with open(path, "r+b") as file:
        file.write(bytes(path.stat().st_size))
    torch.testing.assert_close(
        tensors, TENSORS, rtol=0, atol=0
    )  # tensors are copies, not memory-mapped


@given(st.data())
@settings(max_examples=150)
def test_truncated_checkpoint_is_rejected(path: Path, data: st.DataObject) -> None:
    content = path.read_bytes()
    other = path.with_name("other")
    other.write_bytes(content[: data.draw(st.integers(0, len(content) - 1))])
    with pytest.raises(UserError, match="other cannot be opened: "):
        load_checkpoint(other)


def test_other_files_are_rejected_in_one_line(workplace: Path) -> None:
    x = {"x": torch.zeros(1)}
    metadata = {"format": FORMAT, "header": "{}"}
    eighths = {"x": torch.zeros(2, dtype=torch.float8_e4m3fn)}
    damaged = [b"", b"{}", struct.pack("<Q", 1 << 60) + b"{}", b"\x80\x04\x95 a pickle"]
    damaged += [save(x, {"format": FORMAT}), save(x, metadata), save(eighths, metadata)]
    other = [save(x), save(x, metadata | {"format": "glassgpt 2"})]
    for content in (*damaged, *other):
        Path("file").write_bytes(content)
        kind = "is not a checkpoint of this" if content in other else "cannot be opened: "
        with pytest.raises(UserError, match=f"^file {kind}.*$"):
            load_checkpoint(Path("file"))


def test_missing_field_gets_its_default_and_unknown_is_rejected(path: Path) -> None:
    """A run that was made before a field was added still opens."""
    rewrite(path, lambda plain: plain["config"]["model"].pop("dropout"))
    model = dataclasses.replace(MODEL, dropout=0.0)
    assert load_checkpoint(path)[0] == dataclasses.replace(HEADER, config=Config(model=model))
    rewrite(path, lambda plain: plain.update(config={"data": {}, "model": {}, "train": {}}))
    assert load_checkpoint(path)[0].config == Config()
    for place in ("odd", "config.odd", "config.model.odd", "config.train.odd", "state.odd"):
        save_checkpoint(path, TENSORS, HEADER)
        rewrite(path, lambda plain: put(plain, place, 1))  # noqa: B023
        with pytest.raises(UserError, match=f"cannot be opened: {place} is unknown"):
            load_checkpoint(path)


def put(plain: dict[str, Any], place: str, value: Any) -> None:
    *sections, name = place.split(".")
    for section in sections:
        plain = plain[section]
    plain[name] = value


WRONG = [
    ("config.model.n_layer", 10**15, "config.model.n_layer must be less"),
    ("config.data.source", "\ud800", "Invalid JSON"),
    ("corpus.start_token", 5, "start_token"),
    ("state.step", 2**63, "state.step must be less"),
    ("state", json.loads("[" * 900 + "]" * 900), "recursion limit"),
]


@pytest.mark.parametrize(("place", "value", "message"), WRONG, ids=lambda value: str(value)[:30])
def test_forged_header_is_rejected_with_a_short_message(
    path: Path, place: str, value: Any, message: str
) -> None:
    rewrite(path, lambda plain: put(plain, place, value))
    with pytest.raises(UserError, match=f"last.safetensors cannot be opened: .*{message}") as error:
        open_run(path.parent)
    assert len(str(error.value)) < 500


# --- tensors -------------------------------------------------------------------------------------


def test_non_finite_number_is_found_anywhere(path: Path) -> None:
    tried = TENSORS | {"long": torch.zeros(70)}  # several SIMD vectors and a remainder
    check_finite(tried)
    for value in (torch.inf, -torch.inf, torch.nan):
        for name in ("weight", "half", "step", "long"):
            for place in range(tried[name].numel()):
                tensors = tried | {name: tried[name].clone().contiguous()}
                tensors[name].view(-1)[place] = value
                with pytest.raises(FloatingPointError, match=f"^{name} is not finite"):
                    check_finite(tensors)
    save_checkpoint(path, {"x": torch.tensor(torch.nan)}, HEADER)
    with pytest.raises(UserError, match="cannot be opened: x is not finite"):
        load_checkpoint(path)


def test_tensors_must_match_in_name_shape_and_dtype() -> None:
    expected = {"a.x": torch.zeros(2, 3), "a.y": torch.zeros(())}
    there = {"a.x": torch.ones(2, 3), "a.y": torch.ones(()), "b.z": torch.ones(9)}
    misfits = {
        "a.x is absent, expected float32 (2, 3)": None,
        "a.x is float32 (3, 2), expected float32 (2, 3)": torch.ones(3, 2),
        "a.x is float16 (2, 3), expected float32 (2, 3)": torch.ones(2, 3).half(),
        "a.z is float32 (2,), expected absent": torch.ones(2),
    }
    for message, tensor in misfits.items():
        tensors = {k: v for k, v in there.items() if k != message[:3]}
        if tensor is not None:
            tensors[message[:3]] = tensor
        with pytest.raises(UserError) as error:
            copy_into(expected, tensors, Path("f"))
        assert str(error.value) == f"f does not match its config: {message}"
    assert not any(tensor.any() for tensor in expected.values())
    copy_into(expected, there, Path("f"))
    assert all(torch.equal(expected[name], there[name]) for name in expected)


def test_header_with_removed_fields_opens_but_does_not_resume(tmp_path: Path) -> None:
    """Unless they had the value with which they changed nothing. Other fields are not accepted."""
    path, text = tmp_path / "last.safetensors", json.dumps(dataclasses.asdict(HEADER))
    for field, value, resumes in (
        ("teachers", "a,b", False),
        ("teachers", "", True),
        ("muon_momentum", 0.9, False),
        ("snapshot_mb", 7.5, True),
        ("unheard_of", 1, None),
    ):
        plain = json.loads(text)
        plain["config"]["train"][field] = value
        metadata = {"format": FORMAT, "header": json.dumps(plain)}
        path.write_bytes(save({"x": torch.ones(2)}, metadata))
        if resumes is None:
            with pytest.raises(UserError, match=r"cannot be opened: .*unheard_of"):
                open_run(tmp_path)
            return
        saved = open_run(tmp_path)
        assert dataclasses.replace(saved.header, removed={}) == HEADER
        if resumes:
            saved.check_resume(HEADER.corpus, HEADER.config.train, HEADER.machine)
        else:
            with pytest.raises(UserError, match=f"was trained with train.{field} {value}, which"):
                saved.check_resume(HEADER.corpus, HEADER.config.train, HEADER.machine)


# --- snapshots -----------------------------------------------------------------------------------


def test_snapshot_steps_follow_their_count_and_size_limit() -> None:
    config = TrainConfig(max_steps=1000, snapshots=5)
    assert snapshot_steps(config, 1) == {0, 16, 125, 422, 1000}
    for count, steps in ((0, set()), (1, {1000}), (2, {0, 1000})):
        assert snapshot_steps(dataclasses.replace(config, snapshots=count), 1) == steps
    four, three = {0, 37, 296, 1000}, {0, 125, 1000}  # of exactly 64 MB, and of one more weight
    for parameters, steps in ((8 * 10**6, four), (8 * 10**6 + 1, three), (33 * 10**6, set())):
        assert snapshot_steps(config, parameters) == steps


def test_snapshots_round_trip_in_half_precision(tmp_path: Path) -> None:
    models, other = {}, make()
    for step in (12345, 0):
        models[step] = model = make(step)
        with torch.no_grad():
            model.token_embedding.weight[0, 0] = 1e9
        path = tmp_path / "snapshots" / f"{step:08d}.safetensors"
        save_checkpoint(path, half_precision(model), HEADER)
    (tmp_path / "snapshots" / "notes.safetensors").write_text("someone's")
    found = find_snapshots(tmp_path)
    assert list(found) == [0, 12345]
    for step, path in found.items():
        load_snapshot(other, path)
        for name, weight in models[step].named_parameters():
            rounded = weight.clamp(-65504, 65504).half().float()
            assert torch.equal(other.get_parameter(name), rounded), name
    with pytest.raises(UserError, match=r"head.weight is float32 \(5, 12\), expected .* \(6, 12"):
        load_snapshot(GPT(MODEL, 6), found[0])


# --- opening a run -------------------------------------------------------------------------------


def test_opened_model_computes_the_same_logits(path: Path) -> None:
    config = dataclasses.replace(MODEL, positions="learned", tie_embeddings=True, ngrams=3)
    original = make(1, config).eval()
    header = dataclasses.replace(HEADER, config=Config(model=config))
    save_checkpoint(path, model_tensors(original), header)
    model = open_run(path.parent).model()
    assert not model.training
    tokens = torch.tensor([[0, 1, 2, 3, 4], [4, 4, 3, 0, 1]])
    assert torch.equal(model(tokens), original(tokens))
    rewrite(path, lambda plain: put(plain, "config.model.n_layer", 4))
    with pytest.raises(UserError, match=r"not match its config: model.blocks.3\S* is absent"):
        open_run(path.parent).model()
