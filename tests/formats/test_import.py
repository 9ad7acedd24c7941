"""Imported GPT-2 models: same logits and tokens, and accepted by every command."""

import json
import re
import shutil
from fnmatch import fnmatch
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import convert
import sample
import study
import train
from run.checkpoint import open_run
from tests.data.test_tokenizer import LINES
from tests.formats.models import (
    ODD,
    SIZES,
    difference,
    edit_json,
    library_tokens,
    load,
    make_gpt2,
    save_tokenizer,
)

RUN = Path("runs/g")
# --- file formats --------------------------------------------------------------------------------


@pytest.mark.parametrize(("theirs", "ours"), [("gelu", "gelu"), ("gelu_new", "gelu_tanh")])
@pytest.mark.parametrize("tied", [True, False])
def test_imported_gpt2_matches_transformers(
    workplace: Path, tied: bool, theirs: str, ours: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fields = {"activation_function": theirs, "tie_word_embeddings": tied}
    make_gpt2(**fields).save_pretrained("theirs")
    save_tokenizer(Path("theirs"))
    assert convert.main(["import", "theirs", "--run", "g"]) == 0
    out = capsys.readouterr().out
    assert "python sample.py runs/g\n" in out
    found = re.search(r"relative to the largest logit: (\S+)\n", out)
    assert found is not None and float(found[1]) < 1e-5
    saved = open_run(RUN)
    assert difference(saved.model(), load(Path("theirs"))) < 1e-5
    config = saved.config.model
    assert (config.activation, config.tie_embeddings, config.dropout) == (ours, tied, 0)
    for text in ODD:
        if "<|endoftext|>" not in text:  # a special token in transformers, text here
            assert saved.tokenizer.encode(text).tolist() == library_tokens(Path("theirs"), text)
        assert saved.tokenizer.decode(saved.tokenizer.encode(text).tolist()) == text
    assert saved.tokenizer.decode([299]) == "<|endoftext|>"


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
    assert convert.main(["import", "theirs", "--run", "g"]) == 0
    saved = open_run(RUN)
    assert saved.config.model.activation == "gelu_tanh" and saved.config.model.tie_embeddings
    assert difference(saved.model(), load(Path("theirs"))) < 1e-5
    for text in ODD[3:8]:
        assert saved.tokenizer.encode(text).tolist() == library_tokens(gpt2, text)


def test_generation_starts_at_bos_or_endoftext(workplace: Path, gpt2: Path) -> None:
    """bos_token_id is used only if it is in the vocabulary."""
    shutil.copytree(gpt2, "theirs")
    for given, start in ((7, 7), (..., 299), (300, 299)):
        edit_json(Path("theirs/config.json"), bos_token_id=given)
        assert convert.main(["import", "theirs", "--run", f"{given}"]) == 0
        assert open_run(Path(f"runs/{given}")).start_token == start


# --- commands ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_every_command_accepts_an_imported_run(
    gpt2: Path, workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("text.txt").write_text(LINES * 40, encoding="utf-8", newline="\n")
    assert convert.main(["import", str(gpt2), "--run", "g"]) == 0
    capsys.readouterr()
    assert sample.main(["g", "--prompt=the man", "--temperature=0", "--max_new_tokens=9"]) == 0
    prompt = torch.tensor([library_tokens(gpt2, "the man")])
    greedy = load(gpt2).generate(prompt, do_sample=False, max_new_tokens=9, eos_token_id=None)
    assert capsys.readouterr().out == open_run(RUN).tokenizer.decode(greedy[0].tolist()) + "\n"
    assert study.main(["verify", "g", "--source=text.txt"]) == 0
    flags = ["--train.max_steps=3", "--train.batch_size=2", "--train.sample_tokens=4"]
    flags += ["--data.source=text.txt", "--train.eval_every=3", "--train.tensorboard=false"]
    assert train.main(["--init_from=g", "--run=tuned", *flags]) == 0
    tuned = open_run(Path("runs/tuned"))
    assert tuned.tokenizer == open_run(RUN).tokenizer and tuned.header.state.step == 3
    assert train.main(["--resume=g"]) == 2


# --- from the Hugging Face Hub -------------------------------------------------------------------


def test_hub_import_fetches_no_pickle_or_code(
    gpt2: Path, workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The weights are in several shards."""
    import huggingface_hub

    whole = Path(shutil.copytree(gpt2, "hub"))
    (whole / "model.safetensors").unlink()
    make_gpt2().save_pretrained(whole, max_shard_size="20KB")
    for name in ("pytorch_model.bin", "model.onnx", "run.py"):
        (whole / name).write_text("never")

    def fetch(name: str, allow_patterns: list[str]) -> str:
        Path("fetched").mkdir()
        for path in whole.iterdir():
            if any(fnmatch(path.name, pattern) for pattern in allow_patterns):
                shutil.copy(path, "fetched")
        return "fetched"

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fetch)
    assert convert.main(["import", "hub:acme/tiny"]) == 0
    assert "never" not in [path.read_text("latin1") for path in Path("fetched").iterdir()]
    (run,) = Path("runs").iterdir()
    assert re.fullmatch(r"tiny-\d{8}-\d{6}", run.name)
    assert difference(open_run(run).model(), load(gpt2)) < 1e-5


def test_hub_model_that_cannot_be_loaded_is_an_error(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    for name in ("acme/absent", "acme/\x1b[31m"):
        assert convert.main(["import", f"hub:{name}", "--run", "h"]) == 2
        err = capsys.readouterr().err
        assert err.startswith("error: ") and err.count("\n") == 1 and "\x1b" not in err
        assert "could not be loaded" in err, err
    assert not Path("runs").exists()
