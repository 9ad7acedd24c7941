"""Exported runs: same logits and tokens in transformers, and an exact round trip."""

import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pydantic.dataclasses
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from common.errors import UserError
from configs.config import STRICT, ModelConfig
from data.tokenizer import ByteTokenizer, CharTokenizer, WordTokenizer
from formats import tokenizers
from formats.__main__ import main
from formats.hugging_face import read_folder, write_folder
from formats.imported import transformers
from formats.names import ACTIVATIONS
from model.gpt import GPT
from tests.conftest import make_run
from tests.data.test_tokenizer import BPE, ODD
from tests.formats.models import BAD_UTF8, CHARS, difference, load
from training.checkpoint import open_run

LEARNED: dict[str, Any] = {"positions": "learned", "qk_norm": False}
TOKENIZERS = {"char": CharTokenizer(CHARS), "byte": ByteTokenizer(), "bpe": BPE}


@pydantic.dataclasses.dataclass(frozen=True, config=STRICT)
class LongerConfig(ModelConfig):
    softcap: float = 0.0


@pytest.mark.parametrize(
    ("kind", "which", "choices"),
    [("char", "best", {}), ("byte", "best", LEARNED), ("bpe", "last", LEARNED)],
)
def test_transformers_opens_an_exported_run(
    workplace: Path,
    capsys: pytest.CaptureFixture[str],
    kind: str,
    which: str,
    choices: dict[str, Any],
) -> None:
    """It computes the same logits and the same tokens, and generates."""
    tokenizer = TOKENIZERS[kind]
    choices = choices | {"block_size": 16, "dropout": 0.1, "attn_dropout": 0.2}
    saved = open_run(make_run(Path("runs/a"), tokenizer=tokenizer, **choices), which)
    assert main(["export", "a", "out", f"--checkpoint={which}"]) == 0
    first, _ = capsys.readouterr().out.splitlines()
    library, start = transformers(), tokenizer.decode([saved.start_token])
    (continued,) = library.pipeline("text-generation", "out")(start)
    assert continued["generated_text"].startswith(start)
    assert {path.name for path in workplace.iterdir()} == {"runs", "out"}

    plain = json.loads(Path("out/config.json").read_text())
    rate = "attn_pdrop" if choices.get("positions") else "attention_dropout"
    assert plain[rate] == 0.2

    theirs, info = library.AutoModelForCausalLM.from_pretrained("out", output_loading_info=True)
    assert not any(info.values())  # transformers initializes missing tensors itself
    assert first.endswith(f", as {type(theirs).__name__} in out")
    assert theirs.dtype == torch.float32 and difference(saved.model(), theirs) < 1e-5
    ends, end = theirs.generation_config, 299 if kind == "bpe" else None
    assert (ends.bos_token_id, ends.eos_token_id, ends.max_length) == (1, end, 16)

    encoder = library.AutoTokenizer.from_pretrained("out")
    assert encoder.model_max_length == 16
    for text in ODD:
        ids = tokenizer.encode(text).tolist()
        assert encoder(text).input_ids == ids, text
        assert encoder.decode(ids) == tokenizer.decode(ids) == text
    if kind == "char":
        with pytest.raises(Exception, match="WordLevel error"):
            encoder("Ω")
    else:
        for invalid in BAD_UTF8:
            assert encoder.decode(list(invalid)) == tokenizer.decode(list(invalid))


def test_numbers_and_signs_are_exported() -> None:
    words = WordTokenizer((*map(str, range(20)), "+", "="))
    encoder = tokenizers.encoder_of(words)
    for text in ("7+12=19", " 1 2\n+ 0 7 =", ""):
        ids = words.encode(text).tolist()
        assert encoder.encode(text).ids == ids and encoder.decode(ids) == words.decode(ids)
    with pytest.raises(Exception, match="WordLevel error"):
        encoder.encode("07")


# --- any model -----------------------------------------------------------------------------------


BOOLEAN = st.booleans()
CHOICES = st.fixed_dictionaries(
    {
        "positions": st.sampled_from(["learned", "rotary", "none"]),
        "activation": st.sampled_from(["gelu", "gelu_tanh", "relu", "relu2"]),
        "ngrams": st.sampled_from([1, 1, 2]),
        "n_layer": st.sampled_from([1, 3]),
        "n_head": st.sampled_from([1, 4]),
        "qk_norm": BOOLEAN,
        "tie_embeddings": BOOLEAN,
        "bias": BOOLEAN,
        "head_bias": st.sampled_from([False, False, True]),
        "n_kv_head": st.sampled_from([None, 1, 4]),
        "window": st.sampled_from([0, 9, 20, [9], 5]),
    }
)


@given(CHOICES)
@settings(max_examples=80)
def test_export_is_rejected_or_computes_the_same(
    tmp_path_factory: pytest.TempPathFactory, choices: dict[str, Any]
) -> None:
    """An exported GPT-2 is imported exactly."""
    choices["head_bias"] &= not choices["tie_embeddings"]
    choices["n_kv_head"] = choices["n_kv_head"] and min(choices["n_kv_head"], choices["n_head"])
    config = ModelConfig(**choices, n_embd=16, block_size=9)
    ours, tokenizer = GPT(config, 5).eval(), CharTokenizer("edcba")
    torch.manual_seed(2)
    for weight in ours.parameters():
        torch.nn.init.normal_(weight, 0.0, 0.3)
    home = tmp_path_factory.mktemp("any")
    try:
        write_folder(ours, tokenizer, 3, home / "out")
    except UserError as error:
        found = re.search(r" does not support model\.(\w+) (\S+)$", str(error))
        assert found is not None and str(getattr(config, found[1])).lower() == found[2], error
        differs = {"n_kv_head": config.kv_heads < config.n_head, "window": any(config.windows)}
        assert differs.get(found[1], True) and not list(home.iterdir())
        return
    assert difference(ours, load(home / "out")) < 1e-5
    if config.positions == "learned":
        back = read_folder(home / "out")
        assert (back.tokenizer, back.start_token) == (tokenizer, 3)
        assert back.model.config == replace(config, n_kv_head=None, window=0)
        torch.testing.assert_close(back.model.state_dict(), ours.state_dict(), rtol=0, atol=0)


def test_new_fields_and_weights_are_rejected(
    workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new field is accepted only at its default."""
    model = GPT(LongerConfig(), 5)
    model.blocks[1].gain = torch.nn.Parameter(torch.ones(3))
    softcap = GPT(LongerConfig(softcap=30.0), 5)
    for changed, message in (
        (softcap, r"does not support model\.softcap 30\.0$"),
        (model, r"only the model that the config describes: .*blocks\.1\.gain"),
        (GPT(LongerConfig(activation="relu"), 5), r"ACTIVATIONS in formats/names.py lacks relu;"),
    ):
        monkeypatch.delitem(ACTIVATIONS, "relu", raising=False)
        with pytest.raises(UserError, match=message):
            write_folder(changed, CharTokenizer("edcba"), 0, Path("out"))


def test_unknown_kind_of_tokens_is_rejected(
    workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokenizers, "ByteTokenizer", type(BPE))
    with pytest.raises(UserError, match=r"^formats/tokenizers\.py lacks byte; add it$"):
        write_folder(GPT(ModelConfig(), 256), ByteTokenizer(), 0, Path("out"))


def test_comparison_catches_changes_not_in_the_config(
    gpt2: Path,
    workplace: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The change is a softcap that is hard-coded in the model. An export is rejected even if
    nothing can compare its logits."""
    make_run(Path("runs/a"), **LEARNED)
    before, unembed = {*Path().rglob("*")}, GPT.unembed
    export = ["export", "a", "out"]
    wrong = {
        "GPT2LMHeadModel computes different logits": ["import", str(gpt2)],
        "an export supports only the model that the config describes": export,
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GPT, "unembed", lambda self, x: 9 * (unembed(self, x) / 9).tanh())
        for line, words in wrong.items():
            assert main(words) == 2
            assert f"error: {line}" in capsys.readouterr().err
            assert {*Path().rglob("*")} == before
            monkeypatch.setitem(sys.modules, "transformers", None)  # after the import
    assert main(export) == 0
    assert "no other program compared the logits: transformers" in capsys.readouterr().out
