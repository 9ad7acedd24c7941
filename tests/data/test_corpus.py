"""Any source becomes one token file, exactly, once."""

import hashlib
import itertools
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import data.corpus
import data.sources
from common.errors import UserError
from data.config import DataConfig
from data.corpus import Corpus, load_corpus
from data.tokenizer import CharTokenizer

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
    monkeypatch.setattr(data.sources, "CHUNK_BYTES", 3)
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
    monkeypatch.setattr(data.sources, "CHUNK_BYTES", chunk)
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


def test_the_same_text_elsewhere_is_kept_once(workplace: Path) -> None:
    (workplace / "t.txt").write_text("some text")
    load("t.txt")
    (workplace / "t.txt").rename(workplace / "moved.txt")
    corpus = load("moved.txt")
    assert len(list(Path("cache/texts").iterdir())) == 1
    assert text_of(corpus) == "some text"
    assert corpus.info["source"] == "moved.txt"


def test_a_changed_file_is_read_anew(workplace: Path) -> None:
    path = workplace / "t.txt"
    path.write_text("some text")
    load("t.txt")
    path.write_text("same size")
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 1))
    assert text_of(load("t.txt")) == "same size"


@pytest.mark.parametrize("changed", ["dcba!", "abc", "abcx"])
def test_a_file_that_changes_while_it_is_read_is_refused(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, changed: str
) -> None:
    (workplace / "t.txt").write_text("abcd")
    find = data.corpus.find_characters

    def find_and_change(*args: Any) -> str:
        found = find(*args)
        (workplace / "t.txt").write_text(changed)
        return found

    monkeypatch.setattr(data.corpus, "find_characters", find_and_change)
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
    names = [path.name for path in (workplace / "cache" / "texts").iterdir()]
    assert [name[:6] for name in names] == [".half-"]
    assert text_of(load("t.txt")) == "abcd"
    assert len(list((workplace / "cache" / "texts").iterdir())) == 1, "the half became the whole"


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
    index = next(path for path in Path("cache/index").iterdir() if path.suffix != ".lock")
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
        (["full.txt", "pydocs"], "pydocs stands alone"),
        (["hub:a/b", "full.txt"], "hub:a/b stands alone"),
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


class Interrupted(Exception):
    """Stands for Ctrl-C, a full disk, a lost connection."""


@given(
    text=st.text(st.sampled_from("ab\n é日😀"), min_size=1, max_size=60),
    tokenizer=st.sampled_from(["char", "byte"]),
    after=st.lists(st.integers(0, 12), max_size=6),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_interrupted_anywhere_it_is_taken_up_again(
    tmp_path_factory: pytest.TempPathFactory, text: str, tokenizer: str, after: list[int]
) -> None:
    """However often the reading ends, and wherever, the tokens are those of one reading."""
    folder = tmp_path_factory.mktemp("texts")
    paths = [str(folder / name) for name in ("a.txt", "b.txt")]
    for path in paths:
        Path(path).write_bytes(text.encode())
    options = {"tokenizer": tokenizer, "separator": "--"}
    whole = load(paths, cache_dir=str(folder / "whole"), **options)
    read = data.corpus.read_chunks
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(data.sources, "CHUNK_BYTES", 3)
        patch.setattr(data.corpus, "PIECE_BYTES", 7)
        for most in after:

            def some_chunks(*args: Any, most: int = most) -> Iterator[tuple[bytes, str]]:
                yield from itertools.islice(read(*args), most)
                raise Interrupted

            patch.setattr(data.corpus, "read_chunks", some_chunks)
            with pytest.raises(Interrupted):
                load(paths, cache_dir=str(folder / "parts"), **options)
        patch.setattr(data.corpus, "read_chunks", read)
        parts = load(paths, cache_dir=str(folder / "parts"), **options)
    assert text_of(parts) == f"{text}--{text}"
    assert (parts.info, parts.tokenizer) == (whole.info, whole.tokenizer)
    assert parts.tokens.dtype == whole.tokens.dtype
    (entry,) = (folder / "parts" / "texts").iterdir()
    assert {path.name for path in entry.iterdir()} == {"tokens.npy", "corpus.json"}


def test_what_was_tokenized_is_not_tokenized_again(
    workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data.sources, "CHUNK_BYTES", 10)
    monkeypatch.setattr(data.corpus, "PIECE_BYTES", 100)
    (workplace / "t.txt").write_text("0123456789" * 100)
    encode, calls = CharTokenizer.encode, []

    def count(self: CharTokenizer, text: str) -> Any:
        calls.append(text)
        if len(calls) == 77:
            raise Interrupted
        return encode(self, text)

    monkeypatch.setattr(CharTokenizer, "encode", count)
    with pytest.raises(Interrupted):
        load("t.txt")
    assert text_of(load("t.txt")) == "0123456789" * 100
    assert len(calls) == 77 + 30, "700 of 1000 bytes were on the disk"


def test_a_text_that_changed_meanwhile_is_not_taken_up(
    workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same size and time, and yet another text: what is read again does not fit."""
    path = workplace / "t.txt"
    monkeypatch.setattr(data.sources, "CHUNK_BYTES", 10)
    monkeypatch.setattr(data.corpus, "PIECE_BYTES", 20)
    path.write_text("0123456789" * 10)
    times = path.stat().st_mtime_ns
    with monkeypatch.context() as patch:
        patch.setattr(data.corpus, "start_token", None)  # calling it fails
        with pytest.raises(TypeError):
            load("t.txt")
    path.write_text("0123456798" * 10)
    os.utime(path, ns=(times, times))
    with pytest.raises(UserError, match="changed"):
        load("t.txt")
    assert text_of(load("t.txt")) == "0123456798" * 10


def test_a_second_process_waits_for_the_first(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (workplace / "t.txt").write_text("some text")
    make, made = data.corpus.make_entry, []

    def make_slowly(*args: Any) -> Path:
        made.append(1)
        if len(made) == 1:
            other.start()
            while "waiting for another process, which reads t.txt" not in capsys.readouterr().err:
                time.sleep(0.01)
        return make(*args)

    other = threading.Thread(target=lambda: found.append(load("t.txt")))
    found: list[Corpus] = []
    monkeypatch.setattr(data.corpus, "make_entry", make_slowly)
    first = load("t.txt")
    other.join()
    assert made == [1]
    assert text_of(found[0]) == text_of(first) == "some text"


def test_an_interrupted_fetch_goes_on_where_it_stopped(
    offline_hub: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from datasets import Dataset

    rows = [f"row {number}\n" for number in range(1000)]
    path = offline_hub / "acme" / "tiny" / "train-00000-of-00001.parquet"
    Dataset.from_dict({"text": rows, "number": range(1000)}).to_parquet(path)
    monkeypatch.setattr(data.sources, "PIECE_BYTES", 1000)
    read, seen = data.sources.text_of, []

    def read_some(row: dict[str, Any], number: int, *args: str) -> str:
        seen.append(number)
        if len(seen) == 500:
            raise Interrupted
        return read(row, number, *args)

    monkeypatch.setattr(data.sources, "text_of", read_some)
    with pytest.raises(Interrupted):
        load("hub:acme/tiny", hub_split="train+validation", separator="|")
    corpus = load("hub:acme/tiny", hub_split="train+validation", separator="|")
    assert text_of(corpus) == "|".join([*rows, "three"])
    assert 400 < seen[500] < 500, "the rest of what was on the disk stays"
    assert seen[500:] == list(range(seen[500], 1001))
    assert [path.suffix for path in sorted(Path("cache/hub").iterdir())] == [".txt", ".lock"]


def rewrite(path: Path, rows: list[str]) -> None:
    """Make the set's only file anew, with another time."""
    from datasets import Dataset

    before = path.stat().st_mtime_ns
    Dataset.from_dict({"text": rows}).to_parquet(path)
    os.utime(path, ns=(before, before + 10**9))


@pytest.fixture
def long_set(offline_hub: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of a thousand rows of 100 bytes; its place is noted after every thousand."""
    (offline_hub / "acme" / "tiny" / "validation-00000-of-00001.parquet").unlink()
    path = offline_hub / "acme" / "tiny" / "train-00000-of-00001.parquet"
    rewrite(path, [f"{number:099}\n" for number in range(1000)])
    monkeypatch.setattr(data.sources, "PIECE_BYTES", 1000)
    return path


def fetch_until(monkeypatch: pytest.MonkeyPatch, row: int) -> None:
    """Start to fetch, and be interrupted at a row."""
    read = data.sources.text_of

    def read_until(content: dict[str, Any], number: int, *args: str) -> str:
        if number == row:
            raise Interrupted
        return read(content, number, *args)

    with monkeypatch.context() as patch:
        patch.setattr(data.sources, "text_of", read_until)
        with pytest.raises(Interrupted):
            load("hub:acme/tiny")


def test_a_fetch_interrupted_at_its_note_and_again(
    long_set: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was written after the last note is taken back, and not counted."""
    for _ in range(2):
        with monkeypatch.context() as patch:
            patch.setattr(data.sources, "write_journal", None)  # calling it fails
            with pytest.raises(TypeError):
                load("hub:acme/tiny")
        fetch_until(monkeypatch, 15)
    fetch_until(monkeypatch, 77)
    assert text_of(load("hub:acme/tiny")) == "".join(f"{number:099}\n" for number in range(1000))


def test_a_set_that_changes_while_it_is_fetched_is_fetched_anew(
    long_set: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetch_until(monkeypatch, 500)
    rewrite(long_set, ["other\n"] * 100)
    assert text_of(load("hub:acme/tiny")) == "other\n" * 100


@pytest.mark.parametrize("name", ["*.half.txt", "*.half.json"])
@pytest.mark.parametrize("damage", ["cut", "changed", "gone"])
def test_a_damaged_half_of_a_fetch_is_fetched_anew(
    long_set: Path, monkeypatch: pytest.MonkeyPatch, name: str, damage: str
) -> None:
    fetch_until(monkeypatch, 500)
    (half,) = Path("cache/hub").glob(name)
    harm(half, damage)
    assert text_of(load("hub:acme/tiny")) == "".join(f"{number:099}\n" for number in range(1000))


def harm(path: Path, damage: str) -> None:
    if damage == "gone":
        path.unlink()
    else:
        content = path.read_bytes()
        middle = len(content) // 2
        changed = content[:middle] + b"?" + content[middle + 1 :]
        path.write_bytes(content[:middle] if damage == "cut" else changed)


@pytest.mark.parametrize("name", ["tokens.npy", "half.json"])
@pytest.mark.parametrize("damage", ["cut", "changed", "gone"])
def test_a_damaged_half_of_tokens_is_never_taken_for_whole(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, name: str, damage: str
) -> None:
    monkeypatch.setattr(data.sources, "CHUNK_BYTES", 10)
    monkeypatch.setattr(data.corpus, "PIECE_BYTES", 100)
    (workplace / "t.txt").write_text("0123456789" * 100)
    with monkeypatch.context() as patch:
        patch.setattr(data.corpus, "start_token", None)  # calling it fails
        with pytest.raises(TypeError):
            load("t.txt")
    (half,) = Path("cache/texts").glob(f".half-*/{name}")
    harm(half, damage)
    for _ in range(3):
        try:
            corpus = load("t.txt")
            break
        except UserError as error:
            if "delete that folder" in str(error):
                shutil.rmtree(Path("cache/texts"))
    assert text_of(corpus) == "0123456789" * 100


@pytest.mark.parametrize("tokenizer", ["char", "byte"])
def test_a_text_that_is_shorter_now_is_not_taken_up(
    long_set: Path, monkeypatch: pytest.MonkeyPatch, tokenizer: str
) -> None:
    """As a set on the hub may be, which has no time and size to know it by."""
    monkeypatch.setattr(data.corpus, "PIECE_BYTES", 1000)
    with monkeypatch.context() as patch:
        patch.setattr(data.corpus, "start_token", None)
        with pytest.raises(TypeError):
            load("hub:acme/tiny", tokenizer=tokenizer)
    next(Path("cache/hub").glob("*.txt")).write_text("0" * 300)
    with pytest.raises(UserError, match="changed while it was read; start again"):
        load("hub:acme/tiny", tokenizer=tokenizer)
    assert text_of(load("hub:acme/tiny", tokenizer=tokenizer)) == "0" * 300


def test_a_set_without_text_is_not_kept(offline_hub: Path) -> None:
    path = offline_hub / "acme" / "tiny" / "train-00000-of-00001.parquet"
    rewrite(path, ["", ""])
    with pytest.raises(UserError, match="has no text in it"):
        load("hub:acme/tiny")
    rewrite(path, ["text"])
    assert text_of(load("hub:acme/tiny")) == "text"
