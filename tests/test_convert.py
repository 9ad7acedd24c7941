"""convert.py as a person uses it: the mistakes one makes, and what is not installed. (That it
converts is in tests/formats.)"""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import convert
import sample
import train
from formats.folder import read_folder
from run.checkpoint import open_run
from tests.conftest import DEBUG, ROOT, make_run
from tests.formats.models import LINES, bpe, make_run_of

LEARNED: dict[str, Any] = {"positions": "learned", "qk_norm": False}
# No class of transformers computes these.
OTHERS: list[tuple[dict[str, Any], str]] = [
    ({"ngrams": 2}, "model.ngrams 2"),
    ({"positions": "none"}, "model.positions none"),
    ({"activation": "swiglu"}, "model.activation swiglu"),
    (LEARNED | {"qk_norm": True}, "model.qk_norm true"),
    (LEARNED | {"norm": "rmsnorm"}, "model.norm rmsnorm"),
]
Error = Callable[..., str]


@pytest.fixture
def error(workplace: Path, capsys: pytest.CaptureFixture[str]) -> Error:
    """The one line that a command ends with; nothing is left behind."""

    def line_of(*argv: str) -> str:
        before = sorted(Path().rglob("*"))
        capsys.readouterr()
        assert convert.main(list(argv)) == 2, argv
        out, err = capsys.readouterr()
        assert err.startswith("error: ") and err.count("\n") == 1 and "Traceback" not in err + out
        assert sorted(Path().rglob("*")) == before, "something is left"
        return err.removeprefix("error: ").removesuffix("\n")

    return line_of


# --- mistakes ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "name what to do: python convert.py export RUN FOLDER, or python convert.py import"),
        (["exprot"], "WHAT; did you mean export?"),
        (["--run=g"], "name what to do"),
        (["export"], "export takes RUN and FOLDER: python convert.py export RUN FOLDER [--flag"),
        (["export", "a"], "export takes RUN and FOLDER"),
        (["export", "--checkpoint=last", "a"], "no word without a flag expected, got: a"),
        (["import"], "import takes FOLDER, hub:OWNER/NAME or ckpt.pt: python convert.py import"),
        (["import", "--run=g"], "import takes FOLDER"),
        (["import", "a", "b"], "no word without a flag expected, got: b"),
        (["export", "a", "b", "c"], "no word without a flag expected, got: c"),
        (["export", "a", "b", "--checkpont=last"], "--checkpont; did you mean --checkpoint?"),
        (["export", "a", "b", "--checkpoint=first"], "--checkpoint must be one of best, last"),
        (["export", "a", "b", "--run=c"], "unknown flag --run"),
        (["import", "a", "--runs=c"], "unknown flag --runs; did you mean --run?"),
        (["import", "a", "--run"], "--run needs a value"),
        (["import", "absent"], "there is no absent; name a folder of transformers, hub:OWNER/NAME"),
        (["export", "absent", "b"], "there is no run absent"),
        (["export", "a", "full"], "full exists; name a folder that does not"),
        (["export", "a", "runs/a/last.safetensors"], "exists; name a folder that does not"),
        (["export", "a", "no/such"], "there is no folder"),
        (["export", "a", ""], "exists; name a folder that does not"),
    ],
)
def test_a_mistake_is_one_line(error: Error, argv: list[str], message: str) -> None:
    make_run(Path("runs/a"))
    Path("full").mkdir()
    assert message in error(*argv)


@pytest.mark.parametrize(("choices", "field"), OTHERS, ids=lambda value: str(value)[:30])
def test_what_transformers_has_no_class_for_names_the_field(
    error: Error, choices: dict[str, Any], field: str
) -> None:
    make_run(Path("runs/a"), **choices)
    assert f"no class of its own for {field} (" in error("export", "a", "out")


def test_a_run_that_was_trained_on_sub_words(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its vocabulary is smaller than the config allows."""
    Path("text.txt").write_text(LINES * 40)
    flags = ["--data.tokenizer=bpe", "--data.source=text.txt", "--data.vocab_size=2000"]
    flags += ["--train.max_steps=2", "--train.eval_every=2", "--train.tensorboard=false"]
    assert train.main([DEBUG, "--run=a", *flags]) == 0
    assert "nats/token" in capsys.readouterr().out
    saved = open_run(Path("runs/a"))
    assert 270 < saved.tokenizer.vocab_size < 400
    assert train.main(["--resume=a", "--train.max_steps=3"]) == 0
    assert convert.main(["export", "a", "out"]) == 0
    assert convert.main(["import", "out", "--run=b"]) == 0
    again = open_run(Path("runs/b"))
    assert again.tokenizer == saved.tokenizer and again.start_token == saved.start_token
    for run in ("a", "b"):
        assert sample.main([run, "--prompt=the man", "--max_new_tokens=5"]) == 0
    capsys.readouterr()
    assert train.main(["--init_from=a", "--data.vocab_size=300", "--run=c"]) == 2
    assert "--init_from cannot change data.vocab_size" in capsys.readouterr().err


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert convert.main(["--help"]) == convert.main(["-h"]) == 0
    assert capsys.readouterr().out.count("python convert.py export runs/my-run") == 2
    for verb, shown in (("export", "--checkpoint VALUE"), ("import", "--tokenizer VALUE")):
        with pytest.raises(SystemExit) as end:
            convert.main([verb, "--help"])
        assert end.value.code == 0 and shown in capsys.readouterr().out


def test_a_name_that_is_taken_or_none(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, error: Error
) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    make_run(Path("runs/a"))
    assert convert.main(["export", "a", "out"]) == 0
    assert "runs/a exists; resume it" in error("import", "out", "--run=a")
    assert "must be a name for a folder in runs/" in error("import", "out", "--run=../b")


def test_a_full_disk_leaves_nothing(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, error: Error
) -> None:
    make_run(Path("runs/a"))

    def full(*args: Any) -> None:
        raise OSError(28, "No space left on device")

    for owner, name in ((Path, "write_bytes"), (os, "rename")):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, full)
            assert error("export", "a", "out").startswith("No space left on device")


# --- what is not installed -----------------------------------------------------------------------


def test_without_transformers_nothing_is_compared(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    for tokens in ("char", "byte"):
        monkeypatch.setitem(sys.modules, "tokenizers", None)
        make_run_of(Path("runs") / tokens, tokens)
        assert convert.main(["export", tokens, f"{tokens} out"]) == 0
        assert convert.main(["import", f"{tokens} out", "--run", f"{tokens} again"]) == 0
        out = capsys.readouterr().out
        line = "not compared: transformers, which would check it, is not installed"
        assert out.count(line) == 2 and "largest difference" not in out
        assert read_folder(Path(f"{tokens} out")).original is None
        assert sample.main([f"{tokens} again", "--max_new_tokens=3"]) == 0


def test_without_tokenizers_sub_words_say_what_to_install(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Models with sub-words come and go all the same; a text has tokens only with the library."""
    run = make_run_of(Path("runs/a"), "bpe")
    text = Path("text.txt")
    text.write_text("some text\n" * 99)
    monkeypatch.setitem(sys.modules, "transformers", None)
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    bpe().__dict__.pop("_encoder", None)
    assert convert.main(["export", "a", "out"]) == 0
    assert convert.main(["import", "out", "--run=b"]) == 0
    assert open_run(Path("runs/b")).tokenizer == open_run(run).tokenizer
    assert sample.main(["b", "--max_new_tokens=3"]) == 0
    for main, argv in (
        (train.main, [DEBUG, "--data.tokenizer=bpe", "--data.source=text.txt", "--run=c"]),
        (sample.main, ["b", "--prompt=a"]),
    ):
        capsys.readouterr()
        assert main(argv) == 2
        err = capsys.readouterr().err
        line = "error: sub-word tokens need the library tokenizers: pip install tokenizers\n"
        assert err.endswith(line)
    assert not Path("runs/c").exists() and not list(Path("cache").rglob("tokens.bin"))


def test_training_and_sampling_load_neither(workplace: Path) -> None:
    """They take seconds to load, and are no requirement."""
    script = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
import sample, train
flags = ["--model.n_embd=8", "--train.max_steps=1", "--train.sample_tokens=1", "--run=a"]
assert train.main([{DEBUG!r}, "--data.source=text.txt", "--train.tensorboard=false", *flags]) == 0
assert sample.main(["a", "--max_new_tokens=1"]) == 0
print("loaded:", sorted({{"transformers", "tokenizers", "formats"}} & sys.modules.keys()))
"""
    Path("text.txt").write_text("some text\n" * 99)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("loaded: []\n")
