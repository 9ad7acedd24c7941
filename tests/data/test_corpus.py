"""Any source becomes one token file, exactly, once; nothing else is read or written."""

import hashlib
import os
import signal
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import data.corpus
import data.sources
import study
import train
from common.errors import UserError
from data.config import DataConfig
from data.corpus import Corpus, load_corpus
from data.tokenizer import CharTokenizer
from tests.conftest import make_run, posix

KINDS = ("char", "byte", "bpe")
ODD = "line\r\nold mac\rtab\tnul\0 \ufeffBOM é e\u0301 😀 שלום\u2028end\x0c\x85\n"


def load(source: str | list[str], given: Any = None, **options: Any) -> Corpus:
    return load_corpus(DataConfig(source=source, **options), given)


def text_of(corpus: Corpus) -> str:
    return corpus.tokenizer.decode(corpus.tokens.tolist())


def kept() -> list[Path]:
    """The files in the cache, but for locks."""
    return [p for p in Path("cache").rglob("*") if p.suffix != ".lock" and not p.is_dir()]


# --- exactly -----------------------------------------------------------------------------------


@given(
    texts=st.lists(st.text(st.characters(codec="utf-8"), min_size=1), min_size=1, max_size=3),
    separator=st.sampled_from(["", "\n", "é--"]),
    chunk=st.integers(1, 9),
)
def test_every_character_of_all_files_is_kept(
    workplace: Path, texts: list[str], separator: str, chunk: int
) -> None:
    """Wherever the end of a chunk cuts them."""
    texts = [texts[0] + ODD, *texts[1:]]
    names = [f"{i}.txt" for i in range(len(texts))]
    for name, text in zip(names, texts, strict=True):
        Path(name).write_bytes(text.encode())
    whole = separator.join(texts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(data.sources, "CHUNK", chunk)
        corpora = [load(names, tokenizer=kind, separator=separator) for kind in KINDS]
    assert corpora[0].tokenizer == CharTokenizer("".join(sorted(set(whole))))
    for corpus in corpora:
        assert text_of(corpus) == whole
        assert isinstance(corpus.tokens, np.memmap) and not corpus.tokens.flags.writeable
        info = (", ".join(names), hashlib.sha256(whole.encode()).hexdigest(), len(corpus.tokens))
        assert tuple(corpus.info[key] for key in ("source", "sha256", "tokens")) == info


def test_subwords_in_chunks_are_those_of_the_whole(workplace: Path) -> None:
    """If each line begins with a word; a longer line than a chunk is cut."""
    text = "a line\nand, it's\r\nthe second\nthe third été 日本 line\nfourth\n" * 20
    Path("t.txt").write_bytes(text.encode())
    tokenizer = load("t.txt", tokenizer="bpe", vocab_size=300).tokenizer
    for chunk in (77, 200, 1000):
        os.utime("t.txt", ns=(0, chunk))  # another entry in the cache
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(data.sources, "CHUNK", chunk)
            corpus = load("t.txt", tokenizer, tokenizer="bpe")
        assert corpus.tokens.tolist() == tokenizer.encode(text).tolist()


@given(st.binary(min_size=1), st.integers(1, 9))
def test_bytes_that_are_no_text_are_tokens_of_one_kind_alone(
    workplace: Path, content: bytes, chunk: int
) -> None:
    Path("t.bin").write_bytes(b"caf\xc3\xa9 \xff" + content)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(data.sources, "CHUNK", chunk)
        corpus = load("t.bin", tokenizer="byte")
        assert corpus.tokens.tolist() == list(b"caf\xc3\xa9 \xff" + content)
        assert corpus.info["sha256"] == hashlib.sha256(Path("t.bin").read_bytes()).hexdigest()
        before = kept()
        for kind in ("char", "bpe"):
            with pytest.raises(UserError, match=r"^t.bin is not UTF-8 text; convert"):
                load(["t.bin", "t.bin"], tokenizer=kind)
    assert kept() == before


def test_generation_starts_at_a_newline_or_the_commonest(workplace: Path) -> None:
    for text, *starts in (("aab\nc\n\nd", "\n", "\n", "\n"), ("xy xy xy", "x", "x", " xy")):
        Path("t.txt").write_text(text)
        for kind, start in zip(KINDS, starts, strict=True):
            corpus = load("t.txt", tokenizer=kind)
            assert corpus.tokenizer.decode([corpus.info["start_token"]]) == start


def test_globs_and_odd_names(workplace: Path) -> None:
    for name in (*"ecadb", "a[1]", "--x"):
        Path(f"{name}.txt").write_text(f"<{name}>")
    Path("f.txt").mkdir()
    assert text_of(load(["b.txt", "[a-d].txt"])) == "<b><a><b><c><d>"
    for name in ("a[1]", "--x"):  # a name that exists is no pattern
        assert text_of(load(f"{name}.txt")) == f"<{name}>"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        *((name, f"no text at {name}") for name in ("absent.txt", "folder", "pipe", "/dev/zero")),
        *((["full.txt", name], f"no text at {name}") for name in ("pydocs", "repeat", "hub:a/b")),
        (["hub:a/b", "full.txt"], "no text at hub:a/b"),
        *((name, f"{name} is empty") for name in ("empty.txt", "em*y.txt")),
    ],
)
def test_a_source_that_is_no_text(workplace: Path, source: str, message: str) -> None:
    Path("full.txt").write_text("full")
    Path("empty.txt").touch()
    Path("folder").mkdir()
    getattr(os, "mkfifo", Path.mkdir)(Path("pipe"))
    for kind in KINDS:
        with pytest.raises(UserError, match=message.replace("em*y", "empty")):
            load(source, tokenizer=kind)
    assert kept() == []


# --- once --------------------------------------------------------------------------------------


def test_the_same_source_is_read_once(workplace: Path) -> None:
    """A text of the same size and time is the one in the cache."""
    for kind in KINDS:
        Path("t.txt").write_text("some text")
        os.utime("t.txt", ns=(0, 0))
        first = load("t.txt", tokenizer=kind)
        before = kept()
        Path("t.txt").write_text("SOME TEXT")
        os.utime("t.txt", ns=(0, 0))
        for tokenizer in (None, first.tokenizer):  # as when a run is resumed
            again = load("t.txt", tokenizer, tokenizer=kind)
            assert text_of(again) == "some text"
            assert (again.info, again.tokenizer) == (first.info, first.tokenizer)
        assert kept() == before
    assert len(kept()) == 2 * len(KINDS)


def test_another_text_is_read_again(workplace: Path) -> None:
    """Of another time, of another size, in another order."""
    Path("b.txt").write_text("text of b")
    for time, text in ((0, "a text"), (1, "A TEXT"), (1, "longer text")):
        Path("a.txt").write_text(text)
        os.utime("a.txt", ns=(0, time))
        assert text_of(load(["a.txt", "b.txt"])) == f"{text}text of b"
        assert text_of(load(["b.txt", "a.txt"])) == f"text of b{text}"
    for V in (257, 258):
        assert load("a.txt", tokenizer="bpe", vocab_size=V).tokenizer.vocab_size == V


def test_a_second_process_waits_for_the_first(
    workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("t.txt").write_text("some text")
    make, texts = data.corpus.make_entry, []

    def make_once(*args: Any) -> None:
        other.start()  # raises if called a second time
        make(*args)

    other = threading.Thread(target=lambda: texts.append(text_of(load("t.txt"))))
    monkeypatch.setattr(data.corpus, "make_entry", make_once)
    assert text_of(load("t.txt")) == "some text"
    other.join()
    assert texts == ["some text"]


# --- whole or absent ---------------------------------------------------------------------------


@posix
@pytest.mark.parametrize("call", ["fsync", "rename"])
@pytest.mark.parametrize("killed", [True, False])
def test_an_entry_is_whole_or_absent(workplace: Path, call: str, killed: bool) -> None:
    """If a process is killed, and on a full disk."""

    def fail(*args: object) -> None:
        if killed:
            os.kill(os.getpid(), signal.SIGKILL)
        raise OSError(28, "No space left on device")

    Path("t.txt").write_text("one two three")
    if (child := os.fork()) == 0:
        setattr(os, call, fail)
        with suppress(OSError):
            load("t.txt")
        os._exit(7)
    os.waitpid(child, 0)
    made = Path("cache/tokens")
    assert len([path for path in made.iterdir() if path.suffix != ".lock"]) == killed
    assert text_of(load("t.txt")) == "one two three"
    assert len(list(made.glob("*/tokens.bin"))) == 1  # nothing of the killed process is left


def test_the_environment_names_the_cache(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("t.txt").write_text("some text")
    monkeypatch.setenv("GLASSGPT_CACHE", "fast disk")
    load("t.txt")
    assert len(list(Path("fast disk").glob("tokens/*/tokens.bin"))) == 1
    assert not Path("cache").exists()


@pytest.mark.parametrize("name", ["tokens.bin", "corpus.json"])
def test_a_damaged_entry_is_named(workplace: Path, name: str) -> None:
    Path("t.txt").write_text("dcba" * 300)
    load("t.txt")
    (path,) = Path("cache/tokens").glob(f"*/{name}")
    content = path.read_bytes()
    for other in (b"", content[:-1]):
        path.write_bytes(other)
        with pytest.raises(UserError, match=f"{path.parent.name}, which you can delete, is"):
            load("t.txt")


# --- a text that only a saved run names --------------------------------------------------------


@pytest.mark.parametrize("source", ["private.txt", "priv*.txt", "hub:acme/tiny"])
def test_a_saved_run_has_nothing_read_or_written(
    workplace: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    source: str,
) -> None:
    """That is new here: a run from elsewhere may name a private file, or a download."""
    monkeypatch.setattr("datasets.load_dataset", lambda *_, **__: pytest.fail("it downloads"))
    Path("private.txt").write_text("a secret text to keep\n" * 40)
    make_run(Path("runs/other"), source=source)
    for main, words, flag in (
        (train.main, "--resume=other --train.max_steps=9", "--data.source"),
        (train.main, "--evaluate=other", "--data.source"),
        (train.main, "--init_from=other", "--data.source"),
        (study.main, "heads other", "--source"),
    ):
        assert main(words.split()) == 2
        said = capsys.readouterr().err.splitlines()[-1]
        assert said.startswith("error: ") and "which only the saved run names" in said
        assert said.endswith(f"; give {flag}")
    assert {path.name for path in workplace.iterdir()} == {"private.txt", "runs"}


# --- a dataset on the Hub ----------------------------------------------------------------------


@pytest.fixture
def tiny(workplace: Path) -> str:
    """A dataset in the Hub's layout: `datasets` takes a local folder of that name for it."""
    from datasets import Dataset

    folder = workplace / "acme" / "tiny"
    folder.mkdir(parents=True)
    for split, rows in (("train", ["one\r\n", None, "two ", "é"]), ("validation", ["three"])):
        columns = {"text": rows, "number": list(range(len(rows)))}
        Dataset.from_dict(columns).to_parquet(folder / f"{split}-00000-of-00001.parquet")
    return "hub:acme/tiny"


def test_a_dataset_is_joined_and_read_once(tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for absent in ({"hub_column": "number"}, {"hub_column": "absent"}, {"hub_split": "absent"}):
        with pytest.raises(UserError, match="hub:acme/tiny could not be loaded"):
            load(tiny, **absent)
    assert not list(Path("cache").glob("tokens/*/*"))
    monkeypatch.setattr(data.sources, "ROWS", 2)
    assert text_of(load(tiny, separator="|")) == "one\r\n||two |é"
    assert text_of(load(tiny, hub_split="train+validation")) == "one\r\ntwo éthree"
    asked = []
    monkeypatch.setattr("datasets.load_dataset", lambda *args, **named: asked.append((args, named)))
    assert text_of(load(tiny, separator="|")) == "one\r\n||two |é"  # from the cache
    for option in ("split", "config", "revision"):
        with pytest.raises(UserError, match="hub:acme/tiny could not be loaded"):
            load(tiny, separator="|", **{f"hub_{option}": "0123abc"})
    named = {"split": "train", "revision": "main", "cache_dir": "cache/hub"}
    assert asked == [
        (("acme/tiny", None), named | {"split": "0123abc"}),
        (("acme/tiny", "0123abc"), named),
        (("acme/tiny", None), named | {"revision": "0123abc"}),
    ]
