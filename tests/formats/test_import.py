"""Imported GPT-2 models: same logits and tokens, and accepted by every command."""

import json
import os
import re
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

import sample
import study
import train
from formats.__main__ import main
from formats.folder import read_folder
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
        if "<|endoftext|>" not in text:  # a special token in transformers, text here
            assert ids == library.encode(text).ids


def test_generation_starts_at_bos_or_endoftext(gpt2: Path, workplace: Path) -> None:
    """bos_token_id is used only if it is in the vocabulary."""
    shutil.copytree(gpt2, "theirs")
    for given, start in ((7, 7), (..., 299), (300, 299)):
        edit_json(Path("theirs/config.json"), bos_token_id=given)
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

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert main(["import", "hub:acme/absent", "--run", "h"]) == 2
    assert capsys.readouterr().err.startswith("error: hub:acme/absent could not be loaded")
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
