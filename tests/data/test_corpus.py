"""Any source is tokenized exactly, and once; nothing else is read or written."""

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
from data.corpus import Text, load_text
from data.tokenizer import CharTokenizer
from tests.conftest import make_run, posix

KINDS = ("char", "byte", "bpe")
ODD = "line\r\nold mac\rtab\tnul\0 \ufeffBOM é e\u0301 😀 שלום\u2028end\x0c\x85\n"


def load(source: str | list[str], given: Any = None, **options: Any) -> Text:
    return load_text(DataConfig(source=source, **options), given)


def text_of(loaded: Text) -> str:
    return loaded.tokenizer.decode(loaded.tokens.tolist())


def cached_files() -> list[Path]:
    """Return the files in the cache, except locks."""
    return [p for p in Path("cache").rglob("*") if p.suffix != ".lock" and not p.is_dir()]


# --- tokenizing a source -----------------------------------------------------------------------


@given(
    texts=st.lists(st.text(st.characters(codec="utf-8"), min_size=1), min_size=1, max_size=3),
    separator=st.sampled_from(["", "\n", "é--"]),
    chunk=st.integers(1, 9),
)
def test_every_character_of_every_file_is_kept(
    workplace: Path, texts: list[str], separator: str, chunk: int
) -> None:
    """Chunks may end anywhere in the text."""
    texts = [texts[0] + ODD, *texts[1:]]
    names = [f"{i}.txt" for i in range(len(texts))]
    for name, text in zip(names, texts, strict=True):
        Path(name).write_bytes(text.encode())
    whole = separator.join(texts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(data.sources, "CHUNK", chunk)
        corpora = [load(names, tokenizer=kind, separator=separator) for kind in KINDS]
    assert corpora[0].tokenizer == CharTokenizer("".join(sorted(set(whole))))
    for loaded in corpora:
        assert text_of(loaded) == whole
        assert isinstance(loaded.tokens, np.memmap) and not loaded.tokens.flags.writeable
        info = (", ".join(names), hashlib.sha256(whole.encode()).hexdigest(), len(loaded.tokens))
        assert tuple(getattr(loaded.corpus, key) for key in ("source", "sha256", "tokens")) == info


def test_bpe_tokens_do_not_depend_on_the_chunk_size(workplace: Path) -> None:
    """Chunks end at line ends, where no word is split if the next line begins with a word."""
    text = "a line\nand, it's\r\nthe second\nthe third été 日本 line\nfourth\n" * 20
    Path("t.txt").write_bytes(text.encode())
    tokenizer = load("t.txt", tokenizer="bpe", vocab_size=300).tokenizer
    for chunk in (77, 200, 1000):
        os.utime("t.txt", ns=(0, chunk))  # makes a new cache entry
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(data.sources, "CHUNK", chunk)
            loaded = load("t.txt", tokenizer, tokenizer="bpe")
        assert loaded.tokens.tolist() == tokenizer.encode(text).tolist()


@given(st.binary(min_size=1), st.integers(1, 9))
def test_only_the_byte_tokenizer_accepts_invalid_utf8(
    workplace: Path, content: bytes, chunk: int
) -> None:
    Path("t.bin").write_bytes(b"caf\xc3\xa9 \xff" + content)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(data.sources, "CHUNK", chunk)
        loaded = load("t.bin", tokenizer="byte")
        assert loaded.tokens.tolist() == list(b"caf\xc3\xa9 \xff" + content)
        assert loaded.corpus.sha256 == hashlib.sha256(Path("t.bin").read_bytes()).hexdigest()
        before = cached_files()
        for kind in ("char", "bpe"):
            with pytest.raises(UserError, match=r"^t.bin is not UTF-8 text; convert"):
                load(["t.bin", "t.bin"], tokenizer=kind)
    assert cached_files() == before


def test_start_token_is_a_newline_or_the_most_frequent(workplace: Path) -> None:
    for text, *starts in (("aab\nc\n\nd", "\n", "\n", "\n"), ("xy xy xy", "x", "x", " xy")):
        Path("t.txt").write_text(text)
        for kind, start in zip(KINDS, starts, strict=True):
            loaded = load("t.txt", tokenizer=kind)
            assert loaded.tokenizer.decode([loaded.corpus.start_token]) == start


def test_globs_expand_and_existing_names_are_literal(workplace: Path) -> None:
    for name in (*"ecadb", "a[1]", "--x"):
        Path(f"{name}.txt").write_text(f"<{name}>")
    Path("f.txt").mkdir()
    assert text_of(load(["b.txt", "[a-d].txt"])) == "<b><a><b><c><d>"
    for name in ("a[1]", "--x"):  # an existing name is not a pattern
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
def test_source_that_is_not_a_text_is_rejected(workplace: Path, source: str, message: str) -> None:
    Path("full.txt").write_text("full")
    Path("empty.txt").touch()
    Path("folder").mkdir()
    getattr(os, "mkfifo", Path.mkdir)(Path("pipe"))
    for kind in KINDS:
        with pytest.raises(UserError, match=message.replace("em*y", "empty")):
            load(source, tokenizer=kind)
    assert cached_files() == []


# --- the cache ---------------------------------------------------------------------------------


def test_unchanged_source_is_read_once(workplace: Path) -> None:
    """A file of the same size and modification time is taken from the cache."""
    for kind in KINDS:
        Path("t.txt").write_text("some text")
        os.utime("t.txt", ns=(0, 0))
        first = load("t.txt", tokenizer=kind)
        before = cached_files()
        Path("t.txt").write_text("SOME TEXT")
        os.utime("t.txt", ns=(0, 0))
        for tokenizer in (None, first.tokenizer):  # a resumed run gives its tokenizer
            again = load("t.txt", tokenizer, tokenizer=kind)
            assert text_of(again) == "some text"
            assert again[1:] == first[1:]
        assert cached_files() == before
    assert len(cached_files()) == 2 * len(KINDS)


def test_changed_source_is_read_again(workplace: Path) -> None:
    """A new modification time, size, order or vocabulary size is a change."""
    Path("b.txt").write_text("text of b")
    for time, text in ((0, "a text"), (1, "A TEXT"), (1, "longer text")):
        Path("a.txt").write_text(text)
        os.utime("a.txt", ns=(0, time))
        assert text_of(load(["a.txt", "b.txt"])) == f"{text}text of b"
        assert text_of(load(["b.txt", "a.txt"])) == f"text of b{text}"
    for V in (257, 258):
        assert load("a.txt", tokenizer="bpe", vocab_size=V).tokenizer.vocab_size == V


def test_second_reader_waits_for_the_first(
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


# --- interrupted writes and damaged entries ----------------------------------------------------


@posix
@pytest.mark.parametrize("killed", [True, False])
def test_cache_entry_is_complete_or_absent(workplace: Path, killed: bool) -> None:
    """The process is killed, or the disk is full."""

    def fail(*args: object) -> None:
        if killed:
            os.kill(os.getpid(), signal.SIGKILL)
        raise OSError(28, "No space left on device")

    Path("t.txt").write_text("one two three")
    if (child := os.fork()) == 0:
        os.rename = fail  # type: ignore[assignment]
        with suppress(OSError):
            load("t.txt")
        os._exit(7)
    os.waitpid(child, 0)
    made = Path("cache/tokens")
    assert len([path for path in made.iterdir() if path.suffix != ".lock"]) == killed
    assert text_of(load("t.txt")) == "one two three"
    assert len(list(made.glob("*/tokens.bin"))) == 1  # nothing of the killed process is left


def test_environment_sets_the_cache(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("t.txt").write_text("some text")
    monkeypatch.setenv("GLASSGPT_CACHE", "fast disk")
    load("t.txt")
    assert len(list(Path("fast disk").glob("tokens/*/tokens.bin"))) == 1
    assert not Path("cache").exists()


@pytest.mark.parametrize("name", ["tokens.bin", "corpus.json"])
def test_damaged_cache_entry_is_rejected_by_name(workplace: Path, name: str) -> None:
    Path("t.txt").write_text("dcba" * 300)
    load("t.txt")
    (path,) = Path("cache/tokens").glob(f"*/{name}")
    content = path.read_bytes()
    for other in (b"", content[:-1]):
        path.write_bytes(other)
        with pytest.raises(UserError, match=f"{path.parent.name}, which you can delete, is"):
            load("t.txt")


# --- texts that only a saved run names ---------------------------------------------------------


@pytest.mark.parametrize("source", ["private.txt", "priv*.txt", "hub:acme/tiny"])
def test_saved_run_cannot_cause_reads_or_downloads(
    workplace: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    source: str,
) -> None:
    """An untrusted run may name a private file, or a download."""
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


# --- datasets on the Hub -----------------------------------------------------------------------


@pytest.fixture
def tiny(workplace: Path) -> str:
    """Return the source of a local dataset, which `datasets` loads like one on the Hub."""
    from datasets import Dataset

    folder = workplace / "acme" / "tiny"
    folder.mkdir(parents=True)
    for split, rows in (("train", ["one\r\n", None, "two ", "é"]), ("validation", ["three"])):
        columns = {"text": rows, "number": list(range(len(rows)))}
        Dataset.from_dict(columns).to_parquet(folder / f"{split}-00000-of-00001.parquet")
    return "hub:acme/tiny"


def test_hub_dataset_is_joined_and_read_once(tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
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
