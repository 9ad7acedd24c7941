"""Any source becomes one token file, exactly, once."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import data.corpus
from data.config import DataConfig
from data.corpus import Corpus, load_corpus
from data.tokenizer import CharTokenizer
from errors import UserError

ROOT = Path(__file__).parent.parent.parent


def load(source: str | list[str], **options: Any) -> Corpus:
    return load_corpus(DataConfig(source=source, **options))


def text_of(corpus: Corpus) -> str:
    return corpus.tokenizer.decode(corpus.tokens.tolist())


@pytest.fixture
def no_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on, whatever reads a text fails."""

    def fail(*args: object, **kwargs: object) -> None:
        raise AssertionError("the text was read again")

    monkeypatch.setattr(data.corpus, "read_chunks", fail)


ODD = "line\r\nold mac\rtab\tnul\0 \ufeffBOM é e\u0301 😀 שלום\u2028end\x0c\x85"


@given(st.text(st.characters(codec="utf-8"), min_size=1))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_character_of_a_file_is_kept(workplace: Path, text: str) -> None:
    path = workplace / "text.txt"
    for content in (text, ODD + text):
        path.write_bytes(content.encode())
        for tokenizer in ("char", "byte"):
            corpus = load(str(path), tokenizer=tokenizer)
            assert text_of(corpus) == content
            assert corpus.info["characters"] == len(content)
            assert corpus.info["sha256"] == hashlib.sha256(content.encode()).hexdigest()


def test_tokens_are_mapped_from_the_smallest_type(workplace: Path) -> None:
    for count, dtype in ((3, np.uint8), (300, np.uint16)):
        (workplace / "t.txt").write_text("".join(chr(0x4E00 + i) for i in range(count)))
        corpus = load("t.txt")
        assert isinstance(corpus.tokens, np.memmap)
        assert corpus.tokens.dtype == dtype


def test_characters_may_be_cut_by_the_end_of_a_chunk(
    workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data.corpus, "CHUNK_BYTES", 3)
    (workplace / "t.txt").write_bytes(ODD.encode())
    assert text_of(load("t.txt")) == ODD


@pytest.mark.parametrize("chunk", [1, 3, 1000])
@pytest.mark.parametrize(
    ("content", "byte"),
    [(b"abc\xff", 3), ("né".encode("latin-1") + b"xx", 1), ("日本".encode()[:-1], 3), (b"\x80", 0)],
)
def test_a_file_that_is_not_utf8_names_the_byte(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, chunk: int, content: bytes, byte: int
) -> None:
    monkeypatch.setattr(data.corpus, "CHUNK_BYTES", chunk)
    (workplace / "t.txt").write_bytes(content)
    with pytest.raises(UserError, match=rf"t.txt is not UTF-8 text: byte {byte} is 0x"):
        load("t.txt")
    assert load("t.txt", tokenizer="byte").tokens.tobytes() == content


def test_several_files_and_globs_are_joined_in_order(workplace: Path) -> None:
    for name in ("b", "a", "a[1]"):
        (workplace / f"{name}.txt").write_text(f"<{name}>")
    assert text_of(load("?.txt")) == "<a><b>"
    assert text_of(load(["b.txt", "a.txt"])) == "<b><a>"
    assert text_of(load(["b.txt", "?.txt"], separator="--")) == "<b>--<a>--<b>"
    assert text_of(load("a[1].txt")) == "<a[1]>", "a name that exists is no pattern"


def test_a_second_start_reads_nothing(workplace: Path, no_reading: None) -> None:
    (workplace / "t.txt").write_text("some text")
    with pytest.raises(AssertionError, match="read again"):
        load("t.txt")


def test_the_same_source_is_found_by_its_index(
    workplace: Path, request: pytest.FixtureRequest
) -> None:
    (workplace / "t.txt").write_text("some text")
    first = load("t.txt")
    request.getfixturevalue("no_reading")
    again = load("t.txt")
    assert text_of(again) == "some text"
    assert again.info == first.info
    assert again.tokenizer == first.tokenizer


def test_the_same_text_elsewhere_is_found_by_its_hash(
    workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (workplace / "t.txt").write_text("some text")
    load("t.txt")
    (workplace / "t.txt").rename(workplace / "moved.txt")
    monkeypatch.setattr(data.corpus, "write_entry", None)  # calling it would fail
    corpus = load("moved.txt")
    assert text_of(corpus) == "some text"
    assert corpus.info["source"] == "moved.txt"


def test_a_changed_file_is_read_anew(workplace: Path) -> None:
    path = workplace / "t.txt"
    path.write_text("some text")
    load("t.txt")
    path.write_text("same size")
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 1))
    assert text_of(load("t.txt")) == "same size"


def test_a_file_that_changes_while_it_is_read_is_refused(
    workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (workplace / "t.txt").write_text("abcd")
    scan = data.corpus.scan_text

    def scan_and_change(*args: Any, **kwargs: Any) -> object:
        result = scan(*args, **kwargs)
        (workplace / "t.txt").write_text("dcba")
        return result

    monkeypatch.setattr(data.corpus, "scan_text", scan_and_change)
    with pytest.raises(UserError, match="changed while it was read"):
        load("t.txt")
    assert not list((workplace / "cache" / "texts").iterdir()), "half an entry was left"


def test_an_entry_is_whole_or_absent(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (workplace / "t.txt").write_text("abcd")

    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(data.corpus, "write_atomically", full)
        with pytest.raises(OSError, match="No space"):
            load("t.txt")
    assert not list((workplace / "cache" / "texts").iterdir())
    assert text_of(load("t.txt")) == "abcd"


def test_a_damaged_entry_is_named(workplace: Path) -> None:
    (workplace / "t.txt").write_text("abcd")
    load("t.txt")
    (tokens,) = (workplace / "cache" / "texts").glob("*/tokens.npy")
    whole = tokens.read_bytes()
    for damaged in (whole[:-2], b"", b"nonsense"):
        tokens.write_bytes(damaged)
        with pytest.raises(UserError, match=r"are damaged .* delete that folder"):
            load("t.txt")
    tokens.write_bytes(whole)
    (index,) = (workplace / "cache" / "index").iterdir()
    for broken in (b"", b"nowhere", b"\xff\0"):
        index.write_bytes(broken)
        assert text_of(load("t.txt")) == "abcd", "a broken index is as good as none"


def test_a_given_tokenizer_is_used_and_its_strangers_listed(workplace: Path) -> None:
    (workplace / "t.txt").write_text("cab")
    config = DataConfig(source="t.txt")
    corpus = load_corpus(config, CharTokenizer("xcba"))
    assert corpus.tokens.tolist() == [1, 3, 2]
    assert load("t.txt").tokens.tolist() == [2, 0, 1], "its own alphabet is another entry"
    with pytest.raises(UserError, match="never seen 'b'"):
        load_corpus(config, CharTokenizer("ac"))


def test_writing_starts_at_a_newline_or_the_commonest(workplace: Path) -> None:
    for text, start in (("aab\nc", "\n"), ("abbc", "b")):
        (workplace / "t.txt").write_text(text)
        for tokenizer in ("char", "byte"):
            corpus = load("t.txt", tokenizer=tokenizer)
            assert corpus.tokenizer.decode([corpus.info["start_token"]]) == start


def test_the_manual_records_its_version_and_hash(workplace: Path) -> None:
    corpus = load("pydocs")
    assert corpus.info["source"] == f"the manual of Python {sys.version.split()[0]}"
    assert corpus.info["characters"] > 400_000
    assert hashlib.sha256(text_of(corpus).encode()).hexdigest() == corpus.info["sha256"]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("absent.txt", "no text at absent.txt"),
        ("*.nothing", "no text at"),
        ("folder", r"folder is a folder; name the files in it"),
        ("empty.txt", "empty.txt is empty"),
        (["full.txt", "empty.txt"], "empty.txt is empty"),
    ],
)
def test_a_source_that_is_no_text(workplace: Path, source: str, message: str) -> None:
    (workplace / "folder").mkdir()
    (workplace / "empty.txt").touch()
    (workplace / "full.txt").write_text("full")
    with pytest.raises(UserError, match=message):
        load(source)


def make_hub_set(folder: Path) -> None:
    """A set in the hub's layout: `datasets` takes a local folder of that name for it."""
    from datasets import Dataset

    folder.mkdir(parents=True)
    for split, rows in (("train", ["one\r\n", "two "]), ("validation", ["three"])):
        rows_by_column = {"text": rows, "number": [1] * len(rows)}
        Dataset.from_dict(rows_by_column).to_parquet(folder / f"{split}-00000-of-00001.parquet")


@pytest.fixture
def offline_hub(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", workplace / "hf")
    make_hub_set(workplace / "acme" / "tiny")
    return workplace


def test_a_hub_set_is_joined_and_found_again(
    offline_hub: Path, request: pytest.FixtureRequest
) -> None:
    source = "hub:acme/tiny"
    assert text_of(load(source, hub_split="train+validation")) == "one\r\ntwo three"
    assert text_of(load(source, separator="|")) == "one\r\n|two "
    request.getfixturevalue("no_reading")
    corpus = load(source, hub_split="train+validation")
    assert text_of(corpus) == "one\r\ntwo three"
    assert corpus.info["source"] == "hub:acme/tiny train+validation at main"


def test_a_wrong_column_or_split_of_a_hub_set(offline_hub: Path) -> None:
    with pytest.raises(UserError, match=r"row 0: number is 1, not text; .* --data.hub_column"):
        load("hub:acme/tiny", hub_column="number")
    with pytest.raises(
        UserError, match=r"no column 'words'; --data.hub_column can be text, number"
    ):
        load("hub:acme/tiny", hub_column="words")
    with pytest.raises(UserError, match=r"could not load hub:acme/tiny .*test"):
        load("hub:acme/tiny", hub_split="test")


def test_a_second_start_imports_no_datasets(offline_hub: Path) -> None:
    load("hub:acme/tiny")
    program = (
        "import sys; from data.config import DataConfig; from data.corpus import load_corpus;"
        "corpus = load_corpus(DataConfig(source='hub:acme/tiny'));"
        "print(len(corpus.tokens), 'datasets' in sys.modules)"
    )
    result = subprocess.run(
        [sys.executable, "-c", program],
        cwd=offline_hub,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout.split() == ["9", "False"]


def test_an_unknown_hub_set_or_no_network_says_what_to_do(
    workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import datasets

    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    with pytest.raises(UserError, match=r"could not load hub:no/such-set .* --data.source FILE"):
        load("hub:no/such-set")


@pytest.mark.parametrize("byte", [1, 255])
def test_tokens_that_changed_on_the_disk_are_found(workplace: Path, byte: int) -> None:
    (workplace / "t.txt").write_text("some text " * 100)
    load("t.txt")
    (path,) = Path("cache/texts").glob("*/tokens.npy")
    content = bytearray(path.read_bytes())
    content[-1] = byte
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"are damaged .*; delete that folder"):
        load("t.txt")


def test_a_name_that_no_hub_has_is_no_folder_here() -> None:
    for name in ("../../x", "x", "", "a/b/c"):
        with pytest.raises(UserError, match="is no name on the hub"):
            load(f"hub:{name}")
