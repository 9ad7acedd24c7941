"""Exported runs: same logits and tokens in transformers, and an exact round trip."""

import io
import json
import re
import sys
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pydantic.dataclasses
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import convert
from common.errors import UserError
from common.fields import STRICT
from data.tokenizer import ByteTokenizer, CharTokenizer, Tokenizer
from formats.folder import read_folder, write_folder
from formats.imported import compare_logits, transformers
from formats.names import GPT2
from model.config import ModelConfig
from model.gpt import GPT
from run.checkpoint import SavedRun, open_run
from sampling.generate import Sampling, generate
from tests.conftest import make_run
from tests.data.test_tokenizer import BPE
from tests.formats.models import BAD_UTF8, CHARS, ODD, difference, load

LEARNED: dict[str, Any] = {"positions": "learned", "qk_norm": False}
# By folder name: the class of transformers, and options of the model.
RUNS = {
    "Persimmon-char": ("Persimmon", {}),
    "Persimmon-byte": (
        "Persimmon",
        {"qk_norm": False, "activation": "gelu", "tie_embeddings": True, "bias": True},
    ),
    "Persimmon-bpe": ("Persimmon", {"activation": "gelu_tanh", "bias": True, "n_head": 1}),
    "GPT2-char": (
        "GPT2",
        {"activation": "gelu_tanh", "tie_embeddings": True, "bias": True, "n_head": 4} | LEARNED,
    ),
    "GPT2-byte": ("GPT2", {"activation": "gelu"} | LEARNED),
    "GPT2-bpe": ("GPT2", {"activation": "relu2", "bias": True} | LEARNED),
}
END = 299  # <|endoftext|>


@pydantic.dataclasses.dataclass(frozen=True, config=STRICT)
class LongerConfig(ModelConfig):
    softcap: float = 0.0


TOKENIZERS: dict[str, Tokenizer] = {
    "char": CharTokenizer(CHARS),
    "byte": ByteTokenizer(),
    "bpe": BPE,
}


@dataclass(frozen=True)
class Exported:
    """A run, and the folder that it was exported to."""

    saved: SavedRun
    folder: Path
    stdout: str

    @property
    def model(self) -> GPT:
        return self.saved.model()


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Exported]:
    """Return runs, each exported to a folder of the same name."""
    home, made = tmp_path_factory.mktemp("exported"), {}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        for name, (_, choices) in RUNS.items():
            choices = {"n_layer": 2, "block_size": 16} | choices
            run = make_run(
                home / "runs" / name, tokenizer=TOKENIZERS[name.split("-")[1]], **choices
            )
            with redirect_stdout(io.StringIO()) as stdout:
                assert convert.main(["export", name, name]) == 0
            made[name] = Exported(open_run(run), home / name, stdout.getvalue())
    assert {path.name for path in home.iterdir()} == {"runs", *RUNS}
    return made


# --- logits and tokens ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", RUNS)
def test_transformers_computes_the_same_logits(exported: dict[str, Exported], name: str) -> None:
    run = exported[name]
    kind = transformers().AutoModelForCausalLM
    theirs, info = kind.from_pretrained(run.folder, output_loading_info=True)
    assert not any(info.values())  # transformers initializes missing tensors itself
    assert type(theirs).__name__.startswith(RUNS[name][0]) and theirs.dtype == torch.float32
    assert difference(run.model, theirs) < 1e-5
    prompt = torch.tensor([[3, 1, 4]])
    most_likely = generate(run.model, prompt, 13, Sampling(temperature=0.0))
    expected = [*prompt[0].tolist(), *map(int, most_likely)]
    greedy = theirs.generate(prompt, do_sample=False)[0].tolist()
    assert greedy == expected[: len(greedy)]
    assert len(greedy) == 16 or greedy[-1] == END
    ends = theirs.generation_config
    end = END if name.endswith("bpe") else None
    assert (ends.bos_token_id, ends.eos_token_id, ends.max_length) == (1, end, 16)


@pytest.mark.parametrize("name", RUNS)
def test_transformers_encodes_and_decodes_alike(exported: dict[str, Exported], name: str) -> None:
    ours = exported[name].saved.tokenizer
    theirs = transformers().AutoTokenizer.from_pretrained(exported[name].folder)
    assert theirs.model_max_length == 16
    for text in ODD:
        ids = ours.encode(text).tolist()
        assert theirs(text).input_ids == ids, text
        assert theirs.decode(ids) == ours.decode(ids) == text
    if name.endswith("char"):
        with pytest.raises(Exception, match="WordLevel error"):
            theirs("Ω")
    else:
        for invalid in BAD_UTF8:
            assert theirs.decode(list(invalid)) == ours.decode(list(invalid))
    if name.endswith("bpe"):
        assert theirs.decode([40, END, 41]) == ours.decode([40, END, 41])


def test_printed_example_runs(
    exported: dict[str, Exported], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = exported["GPT2-bpe"]
    monkeypatch.chdir(run.folder.parent)
    first, found, _, *lines = run.stdout.splitlines()
    assert first.endswith("step 2, validation loss 2.5000, as GPT2LMHeadModel in GPT2-bpe")
    assert float(found.rpartition(": ")[2]) < 1e-5
    with redirect_stdout(io.StringIO()) as stdout:
        exec("\n".join(line.strip() for line in lines))
    start = run.saved.tokenizer.decode([run.saved.start_token])
    assert stdout.getvalue().startswith(start) and len(stdout.getvalue()) > len(start) + 1


def test_config_has_transformers_4_fields_and_dropout(exported: dict[str, Exported]) -> None:
    """Transformers 4 reads the rotary settings at the top level of the config."""
    plain = json.loads((exported["Persimmon-char"].folder / "config.json").read_text())
    assert (plain["rope_theta"], plain["partial_rotary_factor"]) == (10_000, 1)
    plain = GPT2.export_config(ModelConfig(**LEARNED, dropout=0.1, attn_dropout=0.2))
    assert [plain[f"{kind}_pdrop"] for kind in ("embd", "resid", "attn")] == [0.1, 0.1, 0.2]


def test_last_checkpoint_can_be_exported(exported: dict[str, Exported], workplace: Path) -> None:
    run = exported["GPT2-char"].saved.path.parent
    assert convert.main(["export", str(run), "last", "--checkpoint=last"]) == 0
    weights = read_folder(Path("last")).model.state_dict()
    expected = open_run(run, "last").model().state_dict()
    assert all(torch.equal(weights[name], expected[name]) for name in expected)


# --- round trip ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in RUNS if name.startswith("GPT2")])
def test_export_then_import_restores_the_run(
    exported: dict[str, Exported], name: str, workplace: Path
) -> None:
    run, saved = exported[name], exported[name].saved
    assert convert.main(["import", str(run.folder), "--run", "back"]) == 0
    back = open_run(Path("runs/back"))
    weights, again = run.model.state_dict(), back.model().state_dict()
    assert weights.keys() == again.keys()
    assert all(torch.equal(weight, again[key]) for key, weight in weights.items())
    assert (back.tokenizer, back.start_token) == (saved.tokenizer, saved.start_token)
    assert back.config.model == saved.config.model
    assert back.config.data.tokenizer == saved.config.data.tokenizer


# --- unsupported models --------------------------------------------------------------------------


CHOICES: dict[str, list[Any]] = {
    "positions": ["learned", "rotary", "none"],
    "activation": ["gelu", "gelu_tanh", "relu", "relu2"],
    "ngrams": [1, 1, 2],
    "n_layer": [1, 3],
    "n_head": [1, 4],
    "qk_norm": [False, True],
    "tie_embeddings": [False, True],
    "bias": [False, True],
    "head_bias": [False, False, True],
}


@given(st.fixed_dictionaries({name: st.sampled_from(CHOICES[name]) for name in CHOICES}))
@settings(max_examples=80)
def test_export_is_rejected_or_computes_the_same(
    tmp_path_factory: pytest.TempPathFactory, choices: dict[str, Any]
) -> None:
    choices["head_bias"] &= not choices["tie_embeddings"]
    config = ModelConfig(**choices, n_embd=16, block_size=9)
    ours = GPT(config, 5).eval()
    torch.manual_seed(2)
    for weight in ours.parameters():
        torch.nn.init.normal_(weight, 0.0, 0.3)
    home = tmp_path_factory.mktemp("any")
    try:
        write_folder(ours, CharTokenizer("edcba"), 3, home / "out")
    except UserError as error:
        found = re.search(
            r" does not support model\.(\w+) (\S+), so this run cannot be", str(error)
        )
        assert found is not None and str(getattr(config, found[1])).lower() == found[2], error
        assert not list(home.iterdir())
    else:
        assert difference(ours, load(home / "out")) < 1e-5


@pytest.mark.parametrize("choices", [{}, LEARNED], ids=["Persimmon", "GPT2"])
def test_new_fields_and_weights_are_rejected(workplace: Path, choices: dict[str, Any]) -> None:
    """A new field is accepted only at its default."""
    tokenizer, out = CharTokenizer("edcba"), Path("out")
    with pytest.raises(UserError, match=r"does not support model\.softcap 30\.0, so"):
        write_folder(GPT(LongerConfig(**choices, softcap=30.0), 5), tokenizer, 0, out)
    model = GPT(LongerConfig(**choices), 5)
    model.blocks[1].gain = torch.nn.Parameter(torch.ones(3))
    with pytest.raises(UserError, match=r"no tensor for blocks\.1\.gain"):
        write_folder(model, tokenizer, 0, out)
    model.get_submodule("blocks.1.attn").value = torch.nn.Linear(128, 64)  # grouped-query attention
    with pytest.raises(UserError, match=r"needs one shape for blocks\.1\.attn\.query, blocks"):
        write_folder(model, tokenizer, 0, out)


def test_comparison_catches_changes_not_in_the_config(
    exported: dict[str, Exported],
    workplace: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The change is a softcap that is hard-coded in the model."""
    folder, unembed = exported["GPT2-char"].folder, GPT.unembed
    monkeypatch.setattr(GPT, "unembed", lambda self, x: 9 * (unembed(self, x) / 9).tanh())
    export = ["export", str(exported["GPT2-char"].saved.path.parent), "out"]
    for words in (export, ["import", str(folder)]):
        assert convert.main(words) == 2
        assert "error: GPT2LMHeadModel computes different logits" in capsys.readouterr().err
        assert not list(workplace.iterdir())
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert convert.main(export) == 0
    assert "not compared: transformers" in capsys.readouterr().out


def test_comparison_catches_a_different_weight(exported: dict[str, Exported]) -> None:
    model, theirs = exported["GPT2-char"].model, load(exported["GPT2-char"].folder)
    for weights, norm in ((model, "final_norm"), (theirs, "transformer.ln_f")):
        weights.state_dict()[f"{norm}.weight"] *= 1000
    compare_logits(model, theirs)  # passes: rounding errors grow with the logits
    model.state_dict()["blocks.1.attn.key.weight"][3] += 0.1
    with pytest.raises(UserError, match="computes different logits"):
        compare_logits(model, theirs)
