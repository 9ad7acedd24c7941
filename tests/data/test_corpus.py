"""Any source is tokenized exactly, and once; nothing else is read or written."""

import hashlib
import logging
import os
import re
import shutil
import signal
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
from datasets import Dataset
from hypothesis import given
from hypothesis import strategies as st

import data.corpus
import data.sources
import study
import train
from common.errors import UserError
from configs.config import DataConfig
from data.corpus import Text, load_text
from data.tokenizer import BPETokenizer, CharTokenizer, Tokenizer, train_bpe
from tests.conftest import make_run, posix
from tests.data.test_tokenizer import ODD

KINDS = ("char", "byte", "bpe")


def load(source: str | list[str], given: Any = None, **options: Any) -> Text:
    return load_text(DataConfig(source=source, **options), given)


def text_of(loaded: Text) -> str:
    return loaded.tokenizer.decode(loaded.tokens.tolist())


def unix(text: str) -> str:
    """Return the text with newlines as they are read."""
    return re.sub(r"\r\n?", "\n", text)


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
    """Chunks may end anywhere in the text. Newlines of every kind are kept as \\n."""
    texts = [texts[0] + "".join(ODD), *texts[1:]]
    names = [f"{i}.txt" for i in range(len(texts))]
    for name, text in zip(names, texts, strict=True):
        Path(name).write_bytes(text.encode())
    whole = separator.join(map(unix, texts))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(data.sources, "CHUNK", chunk)
        options: dict[str, Any] = {"separator": separator}
        corpora = [load(names, tokenizer=kind, **options) for kind in KINDS]
    assert corpora[0].tokenizer == CharTokenizer("".join(sorted(set(whole))))
    for loaded in corpora:
        assert text_of(loaded) == whole
        assert isinstance(loaded.tokens, np.memmap) and not loaded.tokens.flags.writeable
        info = (", ".join(names), hashlib.sha256(whole.encode()).hexdigest(), len(loaded.tokens))
        assert tuple(getattr(loaded.corpus, key) for key in ("source", "sha256", "tokens")) == info


def test_no_word_is_cut_at_the_end_of_a_chunk(workplace: Path) -> None:
    """Chunks end at line ends, where no word is split if the next line begins with a word."""
    text = "a line\nand, it's\r\nthe second\nthe third été 日本 line\nfourth\n" * 20
    Path("t.txt").write_bytes(text.encode())
    tokenizer = train_bpe([unix(text)], 300)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(data.sources, "CHUNK", 77)
        loaded = load("t.txt", tokenizer, tokenizer="bpe")
    assert loaded.tokens.tolist() == tokenizer.encode(unix(text)).tolist()


@given(st.binary(min_size=1), st.integers(1, 9))
def test_only_the_byte_tokenizer_accepts_invalid_utf8(
    workplace: Path, content: bytes, chunk: int
) -> None:
    content = b"caf\xc3\xa9 \xff" + content
    Path("t.bin").write_bytes(content)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(data.sources, "CHUNK", chunk)
        loaded = load("t.bin", tokenizer="byte")
        content = re.sub(rb"\r\n?", b"\n", content)
        assert loaded.tokens.tolist() == list(content)
        assert loaded.corpus.sha256 == hashlib.sha256(content).hexdigest()
        before = cached_files()
        for kind in ("char", "bpe"):
            with pytest.raises(UserError, match=r"^t.bin is not UTF-8 text at byte 6"):
                load("t.bin", tokenizer=kind)
    assert cached_files() == before


def test_start_token_is_a_newline_or_the_most_frequent(workplace: Path) -> None:
    for text, *starts in (("aaaab\nc\n\nd", "\n", "\n", "\n"), ("xy xy xy", "x", "x", " xy")):
        Path("t.txt").write_text(text)
        for kind, start in zip(KINDS, starts, strict=True):
            loaded = load("t.txt", tokenizer=kind)
            assert loaded.tokenizer.decode([loaded.corpus.start_token]) == start


def test_globs_expand_and_existing_names_are_literal(workplace: Path) -> None:
    for name in (*"ecadb", "a[1]", "--x"):
        Path(f"{name}.txt").write_text(f"<{name}>")
    Path("f.txt").mkdir()
    assert text_of(load(["b.txt", "[a-d].txt"])) == "<b><a><c><d>"
    for name in ("a[1]", "--x"):  # an existing name is not a pattern
        assert text_of(load(f"{name}.txt")) == f"<{name}>"


def test_source_that_is_not_a_text_is_rejected(workplace: Path) -> None:
    Path("full.txt").write_text("full")
    Path("empty.txt").touch()
    Path("folder").mkdir()
    getattr(os, "mkfifo", Path.mkdir)(Path("pipe"))
    wrong: list[Any] = ["absent.txt", "folder", "pipe", "/dev/zero", "empty.txt", "em*y.txt"]
    for source in (*wrong, *(["full.txt", name] for name in ("pydocs", "repeat", "hub:a/b"))):
        name = source if isinstance(source, str) else source[-1]
        for kind in KINDS:
            with pytest.raises(
                UserError, match=f"no text at {name}|{name} is a folder|empty.txt is empty"
            ):
                load(source, tokenizer=kind)
    assert cached_files() == []


# --- the cache ---------------------------------------------------------------------------------


BPE = {"tokenizer": "bpe", "vocab_size": 257}
BOTH = {"source": ["a.txt", "b.txt"], "separator": "|"}
ENTRIES: list[tuple[dict[str, Any], Tokenizer | None]] = [
    (BOTH, None),
    (BOTH | {"source": "a.txt"}, None),
    (BOTH | {"source": ["b.txt", "a.txt"]}, None),
    (BOTH | {"separator": "-"}, None),
    (BOTH | {"tokenizer": "byte"}, None),
    (BOTH | BPE, None),
    (BOTH | BPE | {"vocab_size": 258}, None),
    (BOTH, CharTokenizer("abcdenotw \n|")),
    (BOTH, CharTokenizer("wtonedcba \n|")),
    (BOTH | BPE, BPETokenizer("o n")),
    (BOTH | BPE, BPETokenizer("n e")),
]


def test_whatever_changes_the_tokens_changes_the_cache_entry(workplace: Path) -> None:
    """That includes a file's times and size. An entry that exists is not made again."""
    Path("b.txt").write_text("eno owt\n")
    made = 0
    for time, text in ((0, "one two\n"), (1, "two one\n"), (1, "two on\n")):
        Path("a.txt").write_text(text)
        os.utime("a.txt", ns=(0, time))
        for options, other in ENTRIES * 2:
            config = DataConfig(**options)
            names = [config.source] if isinstance(config.source, str) else config.source
            whole = config.separator.join(Path(name).read_text() for name in names)
            loaded = load_text(config, other)
            assert text_of(loaded) == whole and other in (None, loaded.tokenizer), options
            assert loaded.tokenizer.kind == config.tokenizer, options
        made += 2 * len(ENTRIES)
        assert len(cached_files()) == made


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
    assert len([*Path("cache/tokens").glob("*-*")]) == killed
    assert text_of(load("t.txt")) == "one two three"
    assert {path.name for path in cached_files()} == {"tokens.bin", "corpus.json"}
    assert len(cached_files()) == 2  # nothing of the killed process is left


@pytest.mark.parametrize("name", ["tokens.bin", "corpus.json"])
def test_damaged_cache_entry_is_rejected_by_name(
    workplace: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An environment variable sets the folder of the cache."""
    monkeypatch.setenv("GLASSGPT_CACHE", "fast disk")
    Path("t.txt").write_text("dcba" * 300)
    load("t.txt")
    (path,) = Path("fast disk/tokens").glob(f"*/{name}")
    content = path.read_bytes()
    for other in (b"", content[:-1]):
        path.write_bytes(other)
        with pytest.raises(UserError, match=f"{path.parent.name}, which you can delete, is"):
            load("t.txt")
    assert not Path("cache").exists()


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
    for words in ("--resume=other --train.max_steps=9", "--init_from=other"):
        assert train.main(words.split()) == 2
        said = capsys.readouterr().err.splitlines()[-1]
        assert said.startswith("error: ") and "the text of the saved run" in said
        assert said.endswith("give --data.source with --init_from instead of --resume")
    for command in ("heads", "evaluate"):
        assert study.main([command, "other"]) == 2
        assert capsys.readouterr().err.endswith("; to use it, give --source\n")
    assert {path.name for path in workplace.iterdir()} == {"private.txt", "runs"}


def test_config_file_names_a_text_as_a_flag_does(workplace: Path) -> None:
    Path("mine.txt").write_text("a text to keep\n" * 60)
    make_run(Path("runs/a"), source="mine.txt")
    for values, code in (("val_fraction: 0.1", 2), ("source: mine.txt", 0)):
        Path("some.yaml").write_text(f"data: {{{values}}}")
        assert train.main(["some.yaml", "--init_from=a", "--train.max_steps=1"]) == code


# --- datasets on the Hub -----------------------------------------------------------------------


def test_hub_dataset_is_joined(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`datasets` loads the dataset from a folder, as it does from the Hub. A folder that has the
    name of a dataset is not read in its place."""
    folder, load_dataset = Path("hub/acme/tiny"), datasets.load_dataset
    folder.mkdir(parents=True)
    monkeypatch.setattr(
        "datasets.load_dataset",
        lambda name, *args, **more: load_dataset(f"hub/{name}", *args, **more),
    )
    for split, rows in (("train", ["one\r\n", None, "two ", "é"]), ("validation", ["three"])):
        columns = {"text": rows, "number": list(range(len(rows)))}
        Dataset.from_dict(columns).to_parquet(folder / f"{split}-00000-of-00001.parquet")
    for absent in ({"column": "number"}, {"column": "absent"}, {"hub_split": "absent"}):
        with pytest.raises(UserError, match="hub:acme/tiny could not be loaded"):
            load("hub:acme/tiny", **absent)
    assert not list(Path("cache").glob("tokens/*/*"))
    retries = logging.getLogger("huggingface_hub.utils")
    assert not retries.isEnabledFor(logging.WARNING)  # a line for each
    monkeypatch.setattr(data.sources, "ROWS", 2)
    assert text_of(load("hub:acme/tiny", separator="|")) == "one\n||two |é"
    assert Path("cache/hub").is_dir()
    assert text_of(load("hub:acme/tiny", hub_split="train+validation")) == "one\ntwo éthree"
    shutil.copytree("hub/acme", "acme")
    with pytest.raises(UserError, match="hub:acme/tiny is also the path acme/tiny here"):
        load("hub:acme/tiny", hub_split="validation")


def test_every_option_of_a_hub_dataset_chooses_its_text(
    workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each text is downloaded once. The revision follows an @."""
    downloads = []

    def load_dataset(*args: Any, **options: Any) -> Dataset:
        downloads.append(str((args, options)))
        return Dataset.from_dict({name: [name, downloads[-1]] for name in ("text", "odd")})

    monkeypatch.setattr("datasets.load_dataset", load_dataset)
    changes = [{}, {"separator": "|"}, {"source": "hub:c"}, {"source": "hub:b@1"}]
    changes += [{name: "odd"} for name in ("hub_config", "hub_split", "column")]
    plain = {"source": "hub:b", "tokenizer": "byte"}
    texts = {text_of(load(**plain | changed)) for changed in changes * 2}
    assert len(texts) == len(downloads) == len(changes)
    assert "'revision': '1'" in downloads[3] and "'revision': None" in downloads[0]
