"""Imported GPT-2 models: same logits and tokens, and accepted by every command."""

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load as load_bytes
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

import sample
import study
import train
from formats.__main__ import main
from formats.hugging_face import read_folder
from formats.tokenizers import encoder_of, tokenizer_of
from tests.data.test_tokenizer import ODD
from tests.formats.models import (
    SIZES,
    difference,
    edit_json,
    load,
    make_gpt2,
    save_tokenizer,
)
from training.checkpoint import open_run

RUN = Path("runs/g")


def test_format_of_the_hub_matches_transformers(workplace: Path, gpt2: Path) -> None:
    """On the Hub, tensor names have no prefix, masks are stored, and most fields are omitted."""
    shutil.copytree(gpt2, "theirs")
    save_tokenizer(Path("theirs"), hub_format=True)
    path = Path("theirs/model.safetensors")
    tensors = {n.removeprefix("transformer."): t.bfloat16() for n, t in load_file(path).items()}
    tensors.pop("lm_head.weight", None)
    for i in range(2):
        tensors[f"h.{i}.attn.bias"] = torch.ones(32, 32).tril().bool()[None, None]
        tensors[f"h.{i}.attn.masked_bias"] = torch.tensor(-1e4)
    save_file(tensors, path, {"format": "pt"})
    rest = {"model_type": "gpt2", "vocab_size": 300, "n_ctx": 32, "eos_token_id": 299}
    Path("theirs/config.json").write_text(json.dumps(SIZES | rest))
    assert main(["import", "theirs", "--run", "g"]) == 0
    saved = open_run(RUN)
    assert saved.config.model.activation == "gelu_tanh" and saved.config.model.tie_embeddings
    assert difference(saved.model(), load(Path("theirs"))) < 1e-5
    assert saved.tokenizer.decode([299]) == "<|endoftext|>"
    library = Tokenizer.from_file(str(gpt2 / "tokenizer.json"))
    for text in ODD:
        ids = saved.tokenizer.encode(text).tolist()
        assert saved.tokenizer.decode(ids) == text
        assert ids == library.encode(text).ids


def test_generation_starts_at_bos_or_endoftext(gpt2: Path, workplace: Path) -> None:
    """bos_token_id is used only if it is in the vocabulary."""
    shutil.copytree(gpt2, "theirs")
    for bos, start in ((0, 0), (..., 299), (300, 299)):
        edit_json(Path("theirs/config.json"), bos_token_id=bos)
        assert read_folder(Path("theirs")).start_token == start


def test_weights_pass_through_every_command(
    gpt2: Path, workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With learning rates of 0, a run that starts from an import keeps its weights."""
    reference = load(gpt2)
    Path("text.txt").write_text("the man's tree is on the hill\n" * 99)
    still = ["--train.learning_rate=0", "--train.muon_learning_rate=0", "--train.batch_size=2"]
    still += ["--train.sample_tokens=0", "--train.tensorboard=false", "--data.source=text.txt"]
    assert main(["import", str(gpt2), "--run=g"]) == 0
    assert train.main(["--resume=g", "--data.source=text.txt"]) == 2  # it has no optimizer state
    assert train.main(["--init_from=g", "--run=b", "--train.minutes=0.001", *still]) == 0
    steps = open_run(Path("runs/b"), "last").header.state.step
    assert train.main(["--resume=b", f"--train.max_steps={steps + 1}"]) == 0
    assert study.main(["verify", "b", "--source=text.txt"]) == 0
    assert main(["export", "b", "out", "--checkpoint=last"]) == 0
    assert main(["import", "out", "--run=c"]) == 0
    for name in "gbc":
        saved = open_run(Path("runs", name), "last")
        assert difference(saved.model(), reference) < 1e-5
        assert saved.tokenizer == open_run(RUN).tokenizer
    capsys.readouterr()
    assert sample.main(["c", "--prompt=the man", "--temperature=0", "--max_new_tokens=9"]) == 0
    prompt = torch.tensor([saved.tokenizer.encode("the man").tolist()])
    greedy = reference.generate(prompt, do_sample=False, max_new_tokens=9, eos_token_id=None)
    assert capsys.readouterr().out == saved.tokenizer.decode(greedy[0].tolist()) + "\n"


# --- added tokens --------------------------------------------------------------------------------


ADDED = ["<|user|>", "fox jumps", "<|user|>x", " dog"]  # after <|endoftext|>
PARTS = [*ADDED, "<|endoftext|>", "fox", " ", "<|user", "|>", "x", "the man's", "é\n"]


@given(st.lists(st.sampled_from(PARTS)).map("".join), st.permutations(ADDED))
def test_added_tokens_are_those_of_the_library(gpt2: Path, text: str, added: list[str]) -> None:
    library = Tokenizer.from_file(str(gpt2 / "tokenizer.json"))
    library.add_tokens(added[:2])
    library.add_special_tokens(added[2:])
    try:
        tokenizer = tokenizer_of(library, 310)  # six rows are padding
    except ValueError as error:
        assert re.search(r"the added token '<\|user\|>x?' is not supported", str(error))
        assert ("<|user|>" in added[:2]) != ("<|user|>x" in added[:2])  # found one after the other
        return
    ids = tokenizer.encode(text).tolist()
    assert ids == library.encode(text).ids and tokenizer.decode(ids) == text
    assert ids == encoder_of(tokenizer).encode(text).ids  # as in an export


# --- the files of a folder -----------------------------------------------------------------------


INDEX = Path("theirs/model.safetensors.index.json")


@pytest.fixture(params=[True, False], ids=["transformers", "alone"])
def library_or_not(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Import with and without transformers, which compares the logits."""
    if not request.param:
        monkeypatch.setattr("formats.imported.transformers", lambda: None)


def import_error(capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["import", "theirs", "--run", "wrong"]) == 2
    line = capsys.readouterr().err
    assert line.startswith("error: ") and line.count("\n") == 1
    return line


def test_missing_weights_are_named(
    gpt2: Path, workplace: Path, library_or_not: None, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(gpt2, "theirs")
    make_gpt2().save_pretrained("theirs", max_shard_size="20KB")
    shards = sorted(Path("theirs").glob("model-*-of-*.safetensors"))
    shard, content = shards[1], shards[1].read_bytes()
    shard.unlink()
    assert f"there is no {shard}" in import_error(capsys)
    tensors = load_bytes(content)
    lost = min(tensors)
    save_file({name: t for name, t in tensors.items() if name != lost}, shard)
    assert f"{INDEX} names {lost}, which no shard has" in import_error(capsys)
    wrongs: list[Any] = [[], {lost: "../theirs/model.safetensors"}]
    for wrong in wrongs:
        edit_json(INDEX, weight_map=wrong)
        assert "theirs" in import_error(capsys)
    for path in (INDEX, *shards, Path("theirs/model.safetensors")):
        path.unlink()
    assert "theirs has no model.safetensors" in import_error(capsys)
    whole = load_file(gpt2 / "model.safetensors")
    for name in ("h.1.attn.c_attn.bias", "wpe.weight"):
        some = {full: t for full, t in whole.items() if not full.endswith(name)}
        save_file(some, "theirs/model.safetensors")
        import_error(capsys)


def test_head_that_differs_from_the_embedding_it_is_tied_to_is_rejected(
    gpt2: Path, workplace: Path, library_or_not: None, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(gpt2, "theirs")
    path, reference = Path("theirs/model.safetensors"), make_gpt2(tie_word_embeddings=False)
    weights = {n: w.contiguous() for n, w in reference.state_dict().items()}
    for tied in (True, ...):  # the default
        save_file(weights, path)
        edit_json(Path("theirs/config.json"), tie_word_embeddings=tied)
        line = import_error(capsys)
        assert "tie_word_embeddings is true, but lm_head.weight is not transformer.wte" in line
    edit_json(Path("theirs/config.json"), tie_word_embeddings=False)
    assert main(["import", "theirs", "--run", "g"]) == 0
    assert difference(open_run(RUN).model(), reference) < 1e-5


# --- from the Hugging Face Hub -------------------------------------------------------------------


def test_hub_import_fetches_no_pickle_or_code(
    gpt2: Path,
    workplace: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The weights are in several shards. Those of an unsupported model are not fetched."""
    whole = Path(shutil.copytree(gpt2, "hub"))
    (whole / "model.safetensors").unlink()
    make_gpt2().save_pretrained(whole, max_shard_size="20KB")
    for name in ("pytorch_model.bin", "model.onnx", "run.py"):
        (whole / name).write_text("never")

    def fetch(name: str, allow_patterns: list[str]) -> str:
        Path("fetched").mkdir(exist_ok=True)
        for pattern in allow_patterns:
            for path in whole.glob(pattern):
                shutil.copy(path, "fetched")
        return "fetched"

    monkeypatch.setattr("huggingface_hub.snapshot_download", fetch)
    edit_json(whole / "config.json", model_type="llama")
    assert main(["import", "hub:acme/tiny"]) == 2
    assert "model_type 'llama' is not supported, only 'gpt2'" in capsys.readouterr().err
    assert os.listdir("fetched") == ["config.json"] and not Path("runs").exists()
    edit_json(whole / "config.json", model_type="gpt2")
    assert main(["import", "hub:acme/tiny"]) == 0
    assert "never" not in [path.read_text("latin1") for path in Path("fetched").iterdir()]
    (run,) = Path("runs").iterdir()
    assert re.fullmatch(r"tiny-\d{8}-\d{6}", run.name)
    assert difference(open_run(run).model(), load(gpt2)) < 1e-5
