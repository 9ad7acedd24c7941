"""A run as a folder for transformers: the library computes the same model and the same tokens, in
a process that has never heard of this project; and what comes back is what went out."""

import io
import json
import os
import re
import shutil
import subprocess
import sys
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import convert
from common.errors import UserError
from configs.load import Config
from data.config import DataConfig
from data.tokenizer import CharTokenizer
from formats.folder import architecture_for, load_original, read_folder, write_folder
from formats.imported import largest_differences
from model.config import ModelConfig
from model.generate import Sampling, generate
from model.gpt import GPT
from run.checkpoint import Header, SavedRun, model_tensors, open_run
from tests.formats.models import CLASSES, HALVES, ODD, difference, load, make_run_of, transformers
from training.config import TrainConfig
from training.runtime import Machine
from training.state import TrainState

# By the name of its folder: the class, the tokens, and the model.
RUNS = {
    f"{name}-{tokens}-{i}": (name, tokens, choices)
    for name, kinds in CLASSES.items()
    for i, (tokens, choices) in enumerate(zip(("char", "byte", "bpe"), kinds, strict=True))
}
END = 299
SPECIALS = [[END], [40, END, 41], [END, END]]
UNKNOWN = "Ω"

# What another person does with such folders. It knows nothing of this project.
ELSEWHERE = """
import io, json, sys
from contextlib import redirect_stdout
from importlib.util import find_spec

given = json.load(sys.stdin)
assert not any(find_spec(name) for name in ("convert", "formats", "model", "tests"))
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, set_seed

def ids_of(tokenizer, text):
    try:
        return tokenizer(text).input_ids
    except Exception as error:
        return f"{type(error).__name__}: {error}"

def answer(name, asked):
    model = AutoModelForCausalLM.from_pretrained(name)
    tokenizer = AutoTokenizer.from_pretrained(name)
    set_seed(1)
    with redirect_stdout(io.StringIO()) as said:
        exec(asked["lines"])
    with torch.no_grad():
        logits = model(torch.tensor(asked["tokens"])).logits
        greedy = model.generate(torch.tensor([asked["prompt"]]), do_sample=False)[0]
    settings = model.generation_config
    return {
        "class": type(model).__name__,
        "dtype": str(logits.dtype),
        "logits": logits.tolist(),
        "greedy": greedy.tolist(),
        "encoded": [ids_of(tokenizer, text) for text in given["texts"]],
        "decoded": [tokenizer.decode(ids) for ids in asked["ids"]],
        "longest": [tokenizer.model_max_length, settings.max_length],
        "ends": [settings.bos_token_id, settings.eos_token_id],
        "said": said.getvalue(),
    }

json.dump({name: answer(name, asked) for name, asked in given["runs"].items()}, sys.stdout)
"""


@dataclass(frozen=True)
class Exported:
    """A run, and the folder that was made of it."""

    saved: SavedRun
    folder: Path
    said: str

    def model(self) -> GPT:
        return self.saved.model(torch.device("cpu"))

    def tokens(self) -> torch.Tensor:
        shape, V = (2, self.saved.config.model.block_size), self.saved.tokenizer.vocab_size
        return torch.randint(V, shape, generator=torch.Generator().manual_seed(3))

    def encode(self, text: str) -> list[int] | None:
        """Our tokens of a text; None where it has none."""
        try:
            return self.saved.tokenizer.encode(text).tolist()
        except UserError:
            return None

    def weights(self, which: str = "best") -> dict[str, torch.Tensor]:
        tensors = open_run(self.saved.path.parent, which).tensors
        return {n[6:]: tensor for n, tensor in tensors.items() if n.startswith("model.")}


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Exported]:
    """The runs, each exported into a folder of its name."""
    home, made = tmp_path_factory.mktemp("exported"), {}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        for name, (_, tokens, choices) in RUNS.items():
            run = make_run_of(home / "runs" / name, tokens, **choices)
            with redirect_stdout(io.StringIO()) as said:
                assert convert.main(["export", name, name]) == 0
            made[name] = Exported(open_run(run), home / name, said.getvalue())
    return made


@pytest.fixture(scope="session")
def elsewhere(
    exported: dict[str, Exported], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, dict[str, Any]]:
    """What the library makes of each folder, in a process of its own."""
    asked = {}
    for name, run in exported.items():
        bytes_ = HALVES if RUNS[name][1] != "char" else []
        special = SPECIALS if RUNS[name][1] == "bpe" else []
        texts = [tokens for text in ODD if (tokens := run.encode(text)) is not None]
        asked[name] = {
            "tokens": run.tokens().tolist(),
            "prompt": run.tokens()[0, :3].tolist(),
            "ids": [[1, 5, 2], [7, 7, 7], *map(list, bytes_), *special, *texts],
            "lines": "\n".join(line.strip() for line in run.said.splitlines()[-2:]),
        }
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    clean |= {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path_factory.mktemp("hub"))}
    done = subprocess.run(
        [sys.executable, "-I", "-c", ELSEWHERE],
        input=json.dumps({"runs": asked, "texts": [*ODD, UNKNOWN]}),
        cwd=exported[name].folder.parent,
        env=clean,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, dict[str, Any]] = json.loads(done.stdout)
    return {name: asked[name] | found[name] for name in RUNS}


# --- the same model ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RUNS)
def test_the_logits_are_ours(
    exported: dict[str, Exported], elsewhere: dict[str, dict[str, Any]], name: str
) -> None:
    run, theirs = exported[name], elsewhere[name]
    assert theirs["class"] in (f"{RUNS[name][0]}ForCausalLM", f"{RUNS[name][0]}LMHeadModel")
    assert theirs["dtype"] == "torch.float32"
    logits = run.model()(run.tokens()).detach()
    apart = (logits - torch.tensor(theirs["logits"])).abs().max() / logits.abs().max()
    assert apart < 1e-4
    assert difference(run.model(), load(run.folder)) < 1e-10


@pytest.mark.parametrize("name", RUNS)
def test_the_likeliest_text_is_ours_until_the_context_is_full(
    exported: dict[str, Exported], elsewhere: dict[str, dict[str, Any]], name: str
) -> None:
    model, theirs = exported[name].model(), elsewhere[name]
    assert theirs["longest"] == [16, 16]
    drawn = generate(model, torch.tensor([theirs["prompt"]]), 13, Sampling(temperature=0.0))
    ours = [*theirs["prompt"], *(int(token) for token in drawn)]
    assert theirs["greedy"] == ours[: len(theirs["greedy"])]
    assert len(theirs["greedy"]) == 16 or theirs["greedy"][-1] == END, "it ends too early"


@pytest.mark.parametrize("name", RUNS)
def test_the_lines_that_it_prints_run(
    exported: dict[str, Exported], elsewhere: dict[str, dict[str, Any]], name: str
) -> None:
    run, theirs = exported[name], elsewhere[name]
    first, differences, *_ = run.said.splitlines()
    assert first == f"{run.saved}, as {theirs['class']} in {name}".replace(
        f"{run.folder.parent}/", ""
    )
    numbers = re.fullmatch(r"largest diff.*: (\S+) in float32, (\S+) in float64", differences)
    assert numbers is not None and float(numbers[1]) < 1e-4
    assert float(numbers[2]) < (1e-5 if RUNS[name][0] == "Llama" else 1e-10)
    assert theirs["said"].startswith("the ") and len(theirs["said"]) > len("the \n")
    assert theirs["ends"] == [1, END if RUNS[name][1] == "bpe" else None]


# --- the same tokens -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", RUNS)
def test_odd_texts_have_our_tokens_and_come_back(
    exported: dict[str, Exported], elsewhere: dict[str, dict[str, Any]], name: str
) -> None:
    run, theirs = exported[name], elsewhere[name]
    for text, ids in zip([*ODD, UNKNOWN], theirs["encoded"], strict=True):
        if RUNS[name][1] == "char" and text == UNKNOWN:
            assert run.encode(text) is None and "WordLevel error" in ids
        else:
            assert ids == run.encode(text), text
    for ids, text in zip(theirs["ids"], theirs["decoded"], strict=True):
        assert text == run.saved.tokenizer.decode(ids), ids
    assert set(ODD) <= set(theirs["decoded"]), "a text does not come back"


# --- any model -----------------------------------------------------------------------------------


# What a class computes, but for what any does.
NEAR: list[dict[str, Any]] = [
    {},
    {"positions": "learned", "norm": "layernorm", "qk_norm": False, "ngrams": 1},
    {"positions": "rotary", "norm": "layernorm", "ngrams": 1},
    {"positions": "rotary", "norm": "rmsnorm", "qk_norm": False, "ngrams": 1}
    | {"activation": "swiglu"},
]


@st.composite
def configs(draw: st.DrawFn) -> ModelConfig:
    """Any choice inside a block; one in three is a class's own, up to one field."""
    heads, width = draw(st.sampled_from([(1, 4), (2, 6), (3, 4), (4, 4)]))
    near = draw(st.sampled_from(NEAR))
    fields: dict[str, Any] = {
        "positions": draw(st.sampled_from(["learned", "rotary", "none"])),
        "norm": draw(st.sampled_from(["layernorm", "rmsnorm"])),
        "activation": draw(st.sampled_from(["gelu", "gelu_tanh", "relu2", "swiglu"])),
        "qk_norm": draw(st.booleans()),
        "tie_embeddings": draw(st.booleans()),
        "bias": draw(st.booleans()),
        "ngrams": draw(st.sampled_from([1, 1, 2])),
        "dropout": draw(st.sampled_from([0.0, 0.3])),
        "attn_dropout": draw(st.sampled_from([0.0, 0.3])),
        "attention": draw(st.sampled_from(["fused", "explicit"])),
        "zero_init": draw(st.booleans()),
        "n_layer": draw(st.integers(1, 3)),
    }
    changed = draw(st.sampled_from(sorted(near))) if near and draw(st.booleans()) else None
    fields |= {name: value for name, value in near.items() if name != changed}
    return ModelConfig(n_head=heads, n_embd=heads * width, block_size=9, **fields)


NAMED = re.compile(r"no class of its own for model\.(\w+) (\S+) \(the nearest is \w+\); such a run")


MACHINE = Machine("cpu", "", 1, 1, "", "")


@given(configs())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_model_is_refused_or_computed_alike(workplace: Path, config: ModelConfig) -> None:
    ours = GPT(config, 5).eval()
    torch.manual_seed(2)
    for weight in ours.parameters():
        torch.nn.init.normal_(weight, 0.0, 0.3)
    header = Header(
        Config(DataConfig(), config, TrainConfig()),
        {},
        {"start_token": 3},
        Machine("cpu", "", 1, 1, "", ""),
        TrainState(),
    )
    saved = SavedRun(Path("a"), header, CharTokenizer("edcba"), model_tensors(ours))
    shutil.rmtree("out", ignore_errors=True)
    try:
        arch = write_folder(saved, Path("out"))
    except UserError as error:
        found = NAMED.search(str(error))
        assert found is not None and str(getattr(config, found[1])).lower() == found[2], error
        assert not list(workplace.iterdir())
        return
    theirs = load(Path("out"))
    assert type(theirs).__name__ == arch.class_name
    assert difference(ours, theirs) < 1e-10


def test_what_is_refused_names_the_field() -> None:
    rotary = {"positions": "rotary"}
    learned = {"positions": "learned", "qk_norm": False}
    swiglu = {"activation": "swiglu", "qk_norm": False}
    for choices, field, near in (
        ({"positions": "none"}, "model.positions none", "PersimmonForCausalLM"),
        (rotary | {"ngrams": 3}, "model.ngrams 3", "PersimmonForCausalLM"),
        (rotary | swiglu, "model.activation swiglu", "PersimmonForCausalLM"),
        (rotary | {"norm": "rmsnorm"}, "model.activation relu2", "LlamaForCausalLM"),
        (rotary | swiglu | {"norm": "rmsnorm", "qk_norm": True}, "model.qk_norm true", "Llama"),
        (rotary | swiglu | {"norm": "rmsnorm", "ngrams": 2}, "model.ngrams 2", "Llama"),
        (learned | {"qk_norm": True}, "model.qk_norm true", "GPT2LMHeadModel"),
        (learned | {"norm": "rmsnorm"}, "model.norm rmsnorm", "GPT2LMHeadModel"),
        (learned | {"activation": "swiglu"}, "model.activation swiglu", "GPT2LMHeadModel"),
        (learned | {"ngrams": 2}, "model.ngrams 2", "GPT2LMHeadModel"),
    ):
        with pytest.raises(UserError, match=rf"own for {field} \(the nearest is {near}\w*\);"):
            architecture_for(ModelConfig(**choices))


# --- out and in again ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", RUNS)
def test_out_and_in_again_nothing_has_changed(
    exported: dict[str, Exported], name: str, workplace: Path
) -> None:
    run = exported[name]
    assert convert.main(["import", str(run.folder), "--run", "back"]) == 0
    back = Exported(open_run(Path("runs/back")), run.folder, "")
    weights, again = run.weights(), back.weights()
    assert weights.keys() == again.keys()
    for key, weight in weights.items():
        assert weight.dtype == again[key].dtype and torch.equal(weight, again[key]), key
    assert back.saved.tokenizer == run.saved.tokenizer
    assert back.saved.start_token == run.saved.start_token == 1
    same = "block_size n_layer n_head n_embd positions norm activation qk_norm tie_embeddings bias"
    for field in same.split():
        fields = [getattr(saved.config.model, field) for saved in (run.saved, back.saved)]
        assert fields[0] == fields[1], field
    assert back.saved.config.data.tokenizer == run.saved.config.data.tokenizer
    assert torch.equal(run.model()(run.tokens()), back.model()(run.tokens()))


@pytest.mark.parametrize("name", ["Persimmon-bpe-2", "GPT2-bpe-2", "Llama-byte-1"])
def test_biases_that_are_all_zero_are_none(
    exported: dict[str, Exported], name: str, workplace: Path
) -> None:
    """As in a run that begins: a class has them or not, and the model is the same."""
    run = exported[name]
    assert run.saved.config.model.bias
    zeros = {n: t * (not n.endswith(".bias")) for n, t in run.saved.tensors.items()}
    write_folder(replace(run.saved, tensors=zeros), Path("out"))
    back = read_folder(Path("out"))
    assert not back.config.bias
    assert difference(back.model(), load(Path("out"))) < 1e-10


def test_each_tensor_of_a_class_is_there_and_no_other(exported: dict[str, Exported]) -> None:
    """(The library makes those that are missing itself, zero or random.)"""
    load_it = transformers().AutoModelForCausalLM.from_pretrained
    for name in (
        "Persimmon-char-0",
        "Persimmon-byte-1",
        "GPT2-char-0",
        "GPT2-byte-1",
        "Llama-char-0",
    ):
        _, info = load_it(exported[name].folder, output_loading_info=True)
        assert not any(info.values()), info


def test_each_checkpoint_has_its_own_weights(
    exported: dict[str, Exported], workplace: Path
) -> None:
    run = exported["GPT2-char-0"]
    argv = ["export", str(run.saved.path.parent), "last", "--checkpoint=last"]
    assert convert.main(argv) == 0
    best, last = run.weights(), run.weights("last")
    for key, weight in read_folder(Path("last")).weights.items():
        assert torch.equal(weight, last[key]) and not torch.equal(weight, best[key])


def test_a_folder_is_whole_and_says_what_transformers_4_reads(
    exported: dict[str, Exported],
) -> None:
    """It has the rotations beside the other fields too."""
    for name, run in exported.items():
        plain = json.loads((run.folder / "config.json").read_text())
        assert plain["model_type"] == RUNS[name][0].lower() and plain["torch_dtype"] == "float32"
        if RUNS[name][0] != "GPT2":
            assert (plain["rope_theta"], plain["partial_rotary_factor"]) == (10_000, 1)
        assert sorted(path.name for path in run.folder.iterdir()) == [
            *("config.json", "generation_config.json", "model.safetensors"),
            *("tokenizer.json", "tokenizer_config.json"),
        ]
        assert run.folder.stat().st_mode & 0o777 == 0o755
        left = {path.name for path in run.folder.parent.iterdir()}
        assert left == {"runs", *RUNS}, "something half-written is left"


def test_dropout_goes_along() -> None:
    """Where the class has it, for whoever trains it further."""
    chosen = {"dropout": 0.1, "attn_dropout": 0.2}
    expected = [
        ("Persimmon", {"hidden_dropout": 0.1, "attention_dropout": 0.2}),
        ("GPT2", {"embd_pdrop": 0.1, "resid_pdrop": 0.1, "attn_pdrop": 0.2}),
        ("Llama", {"attention_dropout": 0.2}),
    ]
    for kind, fields in expected:
        config = ModelConfig(**CLASSES[kind][0] | chosen)
        plain = architecture_for(config).to_plain(config)
        assert plain | fields == plain


# --- the comparison ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["Persimmon-char-0", "GPT2-char-0", "Llama-char-0"])
def test_a_weight_that_differs_is_seen(exported: dict[str, Exported], name: str) -> None:
    model = exported[name].model()
    small = 1e-5 if RUNS[name][0] == "Llama" else 1e-10
    found = largest_differences(model, load_original(exported[name].folder))
    assert found["float32"] < 1e-4 and found["float64"] < small
    changed = model.float().state_dict()
    changed["blocks.1.attn.key.weight"][3] += 0.3
    found = largest_differences(model, load_original(exported[name].folder))
    assert found["float32"] > 1e-3 and found["float64"] > 1e-3
