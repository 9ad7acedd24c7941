"""A model that somebody else made with transformers is a run here: it computes the same, and every
command takes it."""

import json
import re
import shutil
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import convert
import sample
import study
import train
from model.config import ModelConfig
from model.gpt import GPT
from run.checkpoint import SavedRun, open_run
from tests.formats.conftest import SIZES
from tests.formats.models import (
    LINES,
    ODD,
    TEXT,
    difference,
    edit_json,
    load,
    make_theirs,
    save_tokenizer,
)

ROTARY = {"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": 1.0}
SAME: dict[str, Any] = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
SAME |= {"max_position_embeddings": 32, "rope_parameters": ROTARY}
# What transformers may make, and how it may be saved.
MADE: dict[str, tuple[str, dict[str, Any]]] = {
    "GPT-2": ("GPT2", SIZES),
    "GPT-2 with exact GELU, untied": (
        "GPT2",
        SIZES | {"activation_function": "gelu", "tie_word_embeddings": False, "n_inner": 96},
    ),
    "Persimmon": ("Persimmon", SAME | {"intermediate_size": 96}),
    "Persimmon without QK-norm, tied": (
        "Persimmon",
        SAME | {"intermediate_size": 96, "qk_layernorm": False, "tie_word_embeddings": True},
    ),
    "Llama": ("Llama", SAME | {"intermediate_size": 64, "rms_norm_eps": 1e-5}),
    "Llama with biases": (
        "Llama",
        SAME
        | {"intermediate_size": 64, "rms_norm_eps": 1e-5, "attention_bias": True, "mlp_bias": True},
    ),
}


def imported(name: str = "g") -> SavedRun:
    return open_run(Path("runs") / name)


def model_of(saved: SavedRun) -> GPT:
    return saved.model(torch.device("cpu"))


def printed(out: str) -> list[float]:
    """The two differences that it prints."""
    found = re.search(r"fraction of the largest: (\S+) in float32, (\S+) in float64\n", out)
    assert found is not None, out
    return [float(number) for number in found.groups()]


def library_tokens(folder: Path, text: str) -> list[int]:
    from tokenizers import Tokenizer

    return Tokenizer.from_file(str(folder / "tokenizer.json")).encode(text).ids


# --- in each form --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MADE)
def test_it_computes_the_same(
    workplace: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    kind, fields = MADE[name]
    make_theirs(kind, **fields).save_pretrained("theirs")
    save_tokenizer(Path("theirs"))
    assert convert.main(["import", "theirs", "--run", "g"]) == 0
    out = capsys.readouterr().out
    assert "model: 2 layers x 24 wide, 2 heads, context 32, 300 tokens, " in out
    assert "python sample.py runs/g\n" in out and "python study.py report runs/g\n" in out
    in_32_bits, in_64_bits = printed(out)
    assert in_32_bits < 1e-4 and in_64_bits < (1e-5 if kind == "Llama" else 1e-10)
    theirs = load(Path("theirs"))
    assert difference(model_of(imported()), theirs) < 1e-10
    saved = imported()
    for text in ODD:
        if "<|endoftext|>" not in text:  # there that is the special token, here it is text
            assert saved.tokenizer.encode(text).tolist() == library_tokens(Path("theirs"), text)
        assert saved.tokenizer.decode(saved.tokenizer.encode(text).tolist()) == text
    assert saved.tokenizer.decode([299]) == "<|endoftext|>"


def test_the_approximate_gelu_is_taken_for_the_approximate_one(gpt2: Path, workplace: Path) -> None:
    for theirs, ours, other in (
        ("gelu_new", "gelu_tanh", "gelu"),
        ("gelu_pytorch_tanh", "gelu_tanh", "gelu"),
        ("gelu", "gelu", "gelu_tanh"),
        (..., "gelu_tanh", "gelu"),  # the default
    ):
        shutil.rmtree("theirs", ignore_errors=True)
        shutil.copytree(gpt2, "theirs")
        edit_json(Path("theirs/config.json"), activation_function=theirs)
        assert convert.main(["import", "theirs", "--run", f"{theirs}"]) == 0
        saved, model = imported(f"{theirs}"), load(Path("theirs"))
        assert saved.config.model.activation == ours
        assert difference(model_of(saved), model) < 1e-10
        config = ModelConfig(**vars(saved.config.model) | {"activation": other})
        wrong = GPT(config, 300).eval()
        wrong.load_state_dict(model_of(saved).state_dict())
        assert difference(wrong, model) > 1e-6


@pytest.mark.parametrize("form", ["tokenizer.json", "hub", "vocab.json"])
def test_in_half_precision_in_parts_with_each_form_of_tokenizer(
    gpt2: Path, workplace: Path, form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    make_theirs("GPT2", **SIZES).half().save_pretrained("theirs", max_shard_size="20KB")
    assert len(list(Path("theirs").glob("model-*.safetensors"))) > 2
    save_tokenizer(Path("theirs"), form)
    assert convert.main(["import", "theirs", "--run", "g"]) == 0
    assert printed(capsys.readouterr().out)[1] < 1e-10
    saved = imported()
    assert all(tensor.dtype == torch.float32 for tensor in saved.tensors.values())
    assert difference(model_of(saved), load(Path("theirs"))) < 1e-10
    assert saved.start_token == 299 and saved.tokenizer.decode([299]) == "<|endoftext|>"
    for text in (TEXT, ODD[3], ODD[4], ODD[7]):
        assert saved.tokenizer.encode(text).tolist() == library_tokens(gpt2, text)


@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
def test_as_on_the_hub(workplace: Path, gpt2: Path, kind: str) -> None:
    """GPT-2's names there are those of the part without the head, with masks among them."""
    shutil.copytree(gpt2, "theirs")
    save_tokenizer(Path("theirs"), "hub")
    path = Path("theirs/model.safetensors")
    tensors = {
        name.removeprefix("transformer."): tensor.to(getattr(torch, kind))
        for name, tensor in load_file(path).items()
        if name != "lm_head.weight"
    }
    assert "wte.weight" in tensors and "h.0.ln_1.bias" in tensors
    for i in range(2):
        tensors[f"h.{i}.attn.bias"] = torch.ones(32, 32).tril().bool()[None, None]
        tensors[f"h.{i}.attn.masked_bias"] = torch.tensor(-1e4)
    save_file(tensors, path, {"format": "pt"})
    sizes = {"n_ctx": 32, "n_embd": 24, "n_head": 2, "n_layer": 2, "n_positions": 32}
    drops = {"attn_pdrop": 0.1, "embd_pdrop": 0.1, "resid_pdrop": 0.1, "initializer_range": 0.02}
    summary = {"summary_first_dropout": 0.1, "summary_type": "cls_index", "summary_use_proj": True}
    rest = {
        "activation_function": "gelu_new",
        "architectures": ["GPT2LMHeadModel"],
        "bos_token_id": 299,
        "eos_token_id": 299,
        "layer_norm_epsilon": 1e-05,
        "model_type": "gpt2",
        "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}},
        "vocab_size": 300,
    }
    Path("theirs/config.json").write_text(json.dumps(sizes | drops | summary | rest))
    assert convert.main(["import", "theirs", "--run", "g"]) == 0
    assert imported().start_token == 299
    assert difference(model_of(imported()), load(Path("theirs"))) < 1e-10


def test_more_rows_than_tokens(workplace: Path) -> None:
    """Vocabularies are padded to a round number; the rest are tokens that no text has."""
    theirs = make_theirs("GPT2", **SIZES)
    theirs.resize_token_embeddings(320)
    theirs.save_pretrained("theirs")
    save_tokenizer(Path("theirs"))
    assert convert.main(["import", "theirs", "--run", "g"]) == 0
    saved = imported()
    assert saved.tokenizer.vocab_size == 320 == saved.config.data.vocab_size
    assert len(set(saved.tokenizer.labels)) == 320
    assert difference(model_of(saved), load(Path("theirs"))) < 1e-10
    assert convert.main(["export", "g", "again"]) == 0
    assert convert.main(["import", "again", "--run", "h"]) == 0
    assert imported("h").tokenizer == saved.tokenizer


DEFAULTS: dict[str, dict[str, Any]] = {
    "GPT-2": {"n_inner": None, "layer_norm_epsilon": 1e-5, "scale_attn_weights": True}
    | {"activation_function": "gelu_new", "tie_word_embeddings": True}
    | {"scale_attn_by_inverse_layer_idx": False, "reorder_and_upcast_attn": False}
    | {"add_cross_attention": False},
    "Persimmon": {"layer_norm_eps": 1e-5, "hidden_act": "relu2", "qk_layernorm": True}
    | {"tie_word_embeddings": False},
    "Llama": {"hidden_act": "silu", "tie_word_embeddings": False, "head_dim": 12}
    | {"num_key_value_heads": 2, "rope_parameters": {"rope_theta": 10_000.0}},
}


@pytest.mark.parametrize("name", DEFAULTS)
def test_what_a_config_leaves_out_has_its_defaults(workplace: Path, name: str) -> None:
    """Those of the library, which differ between the classes."""
    kind, fields = MADE[name]
    make_theirs(kind, **fields).save_pretrained("theirs")
    save_tokenizer(Path("theirs"))
    plain = json.loads(Path("theirs/config.json").read_text())
    for field, value in DEFAULTS[name].items():
        given = plain.get(field)
        assert given == value or (isinstance(given, dict) and given | value == given), field
        del plain[field]
    Path("theirs/config.json").write_text(json.dumps(plain))
    assert convert.main(["import", "theirs", "--run=g"]) == 0
    assert difference(model_of(imported()), load(Path("theirs"))) < 1e-10


def test_another_start_than_the_first(workplace: Path, gpt2: Path) -> None:
    shutil.copytree(gpt2, "theirs")
    for given, start in ((7, 7), (299, 299), (..., 0), (None, 0), (300, 0), (-1, 0)):
        edit_json(Path("theirs/config.json"), bos_token_id=given)
        assert convert.main(["import", "theirs", "--run", f"{given}"]) == 0
        assert imported(f"{given}").start_token == start


@pytest.mark.parametrize("found", [0.1, 2e-3, float("nan")])
def test_another_model_than_the_librarys_is_no_run(
    gpt2: Path,
    workplace: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    found: float,
) -> None:
    monkeypatch.setattr(convert, "largest_differences", lambda *_: {"float32": found})
    assert convert.main(["import", str(gpt2), "--run=g"]) == 2
    out, err = capsys.readouterr()
    assert f"{found:.1e} in float32" in out
    assert err.startswith("error: transformers gets other logits") and err.count("\n") == 1
    assert not Path("runs").exists()


# --- every command takes it ----------------------------------------------------------------------


def test_every_command_takes_it(
    gpt2: Path, workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("text.txt").write_text(LINES * 40)
    assert convert.main(["import", str(gpt2), "--run", "g"]) == 0
    text = "--source=text.txt"
    capsys.readouterr()
    assert sample.main(["g", "--prompt=the man", "--temperature=0", "--max_new_tokens=9"]) == 0
    theirs = load(gpt2).float()
    prompt = library_tokens(gpt2, "the man")
    drawn = theirs.generate(
        torch.tensor([prompt]), do_sample=False, max_new_tokens=9, eos_token_id=None
    )
    assert capsys.readouterr().out == imported().tokenizer.decode(drawn[0].tolist()) + "\n"
    assert sample.main(["g", "--max_new_tokens=3"]) == 0
    assert study.main(["verify", "g", text]) == 0
    for argv in (
        ["heads", "g", text, "--sequences=2"],
        ["trace", "g", "--prompt=the tree"],
        ["compare", "g", text, "--sequences=2", "--steps=0"],
    ):
        capsys.readouterr()
        assert study.main(argv) == 0
        assert len(capsys.readouterr().out) > 200
    flags = ["--train.max_steps=3", "--train.batch_size=2", "--train.sample_tokens=4"]
    flags += ["--data.source=text.txt", "--train.eval_every=3", "--train.tensorboard=false"]
    assert train.main(["--init_from=g", "--run=tuned", *flags]) == 0
    tuned = imported("tuned")
    assert tuned.tokenizer == imported().tokenizer and tuned.header.state.step == 3
    assert convert.main(["export", "tuned", "out"]) == 0
    assert difference(model_of(tuned), load(Path("out"))) < 1e-10
    assert train.main(["--resume=tuned", "--train.max_steps=4"]) == 0
    capsys.readouterr()
    assert train.main(["--resume=g"]) == 2
    assert capsys.readouterr().err.startswith("error: ")


def test_a_run_is_called_after_the_model(gpt2: Path, workplace: Path) -> None:
    assert convert.main(["import", str(gpt2)]) == 0
    (run,) = Path("runs").iterdir()
    assert re.fullmatch(r"gpt2-\d{8}-\d{6}", run.name)
    saved = open_run(run)
    assert saved.header.corpus["source"] == f"{gpt2}, imported"
    facts = json.loads((run / "run.json").read_text())
    assert facts["runtime"] == "imported" and (run / "config.yaml").is_file()


# --- from the hub --------------------------------------------------------------------------------


@pytest.fixture
def hub(gpt2: Path, workplace: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The hub's cache with one model in it, and no network."""
    import huggingface_hub

    commit = "1234567890abcdef1234567890abcdef12345678"
    model = workplace / "hub" / "models--acme--tiny-gpt2"
    (model / "refs").mkdir(parents=True)
    (model / "refs" / "main").write_text(commit)
    blobs, snapshot = model / "blobs", model / "snapshots" / commit
    shutil.copytree(gpt2, blobs)
    snapshot.mkdir(parents=True)
    for path in blobs.iterdir():
        (snapshot / path.name).symlink_to(f"../../blobs/{path.name}")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(workplace / "hub"))
    return snapshot


def test_a_model_of_the_hub(hub: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert convert.main(["import", "hub:acme/tiny-gpt2", "--run", "h"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("loading hub:acme/tiny-gpt2\n") and printed(out)[1] < 1e-10
    saved = imported("h")
    assert saved.header.corpus["source"] == "hub:acme/tiny-gpt2, imported"
    assert difference(model_of(saved), load(hub)) < 1e-10
    assert convert.main(["import", "hub:acme/tiny-gpt2"]) == 0
    assert sorted(path.name.split("-")[0] for path in Path("runs").iterdir()) == ["h", "tiny"]


def test_what_is_fetched_is_what_is_read(
    gpt2: Path, workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In parts or whole, with either form of tokenizer; and no pickle."""
    import huggingface_hub

    whole = workplace / "hub"
    shutil.copytree(gpt2, whole)
    for name in ("pytorch_model.bin", "tf_model.h5", "model.onnx", "README.md", "run.py"):
        (whole / name).write_text("never")

    def fetch(name: str, allow_patterns: list[str]) -> str:
        shutil.rmtree("fetched", ignore_errors=True)
        Path("fetched").mkdir()
        for path in whole.iterdir():
            if any(fnmatch(path.name, pattern) for pattern in allow_patterns):
                shutil.copy(path, "fetched")
        return "fetched"

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fetch)
    assert convert.main(["import", "hub:acme/tiny", "--run=a"]) == 0
    assert "never" not in [p.read_text(errors="replace") for p in Path("fetched").iterdir()]
    (whole / "model.safetensors").unlink()
    (whole / "tokenizer.json").unlink()
    make_theirs("GPT2", **SIZES).save_pretrained(whole, max_shard_size="20KB")
    save_tokenizer(whole, "vocab.json")
    assert convert.main(["import", "hub:acme/tiny", "--run=b"]) == 0
    assert difference(model_of(imported("b")), load(gpt2)) < 1e-10


def test_a_model_that_the_hub_has_not(hub: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("acme/absent", "acme", "a/b/c", "", "../hub", "-a/b", "acme/\x1b[31m"):
        assert convert.main(["import", f"hub:{name}", "--run", "h"]) == 2
        err = capsys.readouterr().err
        assert err.startswith("error: could not load hub:") and err.count("\n") == 1, err
        assert "without a network name a folder that has its files" in err and "\x1b" not in err
    assert not Path("runs").exists()
