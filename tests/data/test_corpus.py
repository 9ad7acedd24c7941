"""Any source becomes one token file, exactly, once."""

import hashlib
import json
import os
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import data.corpus
import data.sources
import study
import train
from common.errors import UserError
from data.bpe import BPETokenizer, train_bpe
from data.config import DataConfig
from data.corpus import Corpus, load_corpus
from data.tokenizer import CharTokenizer
from tests.conftest import make_run

KINDS = ("char", "byte")
ODD = "line\r\nold mac\rtab\tnul\0 \ufeffBOM é e\u0301 😀 שלום\u2028end\x0c\x85"


def load(source: str | list[str], **options: Any) -> Corpus:
    return load_corpus(DataConfig(source=source, **options))


def text_of(corpus: Corpus) -> str:
    return corpus.tokenizer.decode(corpus.tokens.tolist())


def kept() -> list[str]:
    """What is in the cache, but for locks, which say nothing."""
    files = (path for path in Path("cache").rglob("*") if path.suffix != ".lock")
    return sorted(str(path.relative_to("cache")) for path in files if not path.is_dir())


@pytest.fixture(autouse=True)
def limit() -> Iterator[None]:
    """Whatever waits for a pipe fails, and does not wait for ever."""
    signal.signal(signal.SIGALRM, lambda *_: pytest.fail("it waits"))
    signal.alarm(300)
    yield
    signal.alarm(0)


@pytest.fixture
def no_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on, whatever reads a text fails."""
    monkeypatch.setattr(data.corpus, "read_chunks", None)


# --- exactly -----------------------------------------------------------------------------------


@given(
    texts=st.lists(st.text(st.characters(codec="utf-8"), min_size=1), min_size=1, max_size=3),
    separator=st.sampled_from(["", "\n", "é--"]),
    chunk=st.integers(1, 9),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
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
        patch.setattr(data.sources, "CHUNK_BYTES", chunk)
        corpora = {kind: load(names, tokenizer=kind, separator=separator) for kind in KINDS}
    assert corpora["char"].tokenizer == CharTokenizer("".join(sorted(set(whole))))
    for kind, corpus in corpora.items():
        assert text_of(corpus) == whole
        assert isinstance(corpus.tokens, np.memmap) and not corpus.tokens.flags.writeable
        assert corpus.info == {
            "source": ", ".join(names),
            "sha256": hashlib.sha256(whole.encode()).hexdigest(),
            "characters": len(whole),
            "tokens": len(whole) if kind == "char" else len(whole.encode()),
            "start_token": corpus.tokenizer.encode("\n")[0] if "\n" in whole else 0,
        }


@given(st.binary(min_size=1), st.integers(1, 9))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_bytes_that_are_no_text_are_tokens_too(workplace: Path, content: bytes, chunk: int) -> None:
    Path("t.bin").write_bytes(content)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(data.sources, "CHUNK_BYTES", chunk)
        assert load("t.bin", tokenizer="byte").tokens.tolist() == list(content)


@given(
    st.text("aé日😀", max_size=9),
    st.sampled_from([b"\xff", b"\xe9xx", "日".encode()[:-1], b"\x80"]),
    st.integers(1, 9),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_file_that_is_not_utf8_names_the_byte(
    workplace: Path, text: str, bad: bytes, chunk: int
) -> None:
    Path("good.txt").write_text("日本")
    Path("t.txt").write_bytes(text.encode() + bad)
    message = rf"t.txt is not UTF-8 text: byte {len(text.encode())} is 0x{bad[0]:02x};"
    with pytest.MonkeyPatch.context() as patch, pytest.raises(UserError, match=message):
        patch.setattr(data.sources, "CHUNK_BYTES", chunk)
        load(["good.txt", "t.txt", "good.txt"])
    assert kept() == []


def test_generation_starts_at_a_newline_or_the_commonest(workplace: Path) -> None:
    for text, start in (("aab\nc", "\n"), ("abbc", "b")):
        Path("t.txt").write_text(text)
        for kind in KINDS:
            corpus = load("t.txt", tokenizer=kind)
            assert corpus.tokenizer.decode([corpus.info["start_token"]]) == start


def test_a_given_tokenizer_is_used(workplace: Path) -> None:
    Path("t.txt").write_text("cab")
    config = DataConfig(source="t.txt")
    assert load_corpus(config, CharTokenizer("xcba")).tokens.tolist() == [1, 3, 2]
    assert load("t.txt").tokens.tolist() == [2, 0, 1], "its own alphabet is another entry"
    before = kept()
    assert load_corpus(config, CharTokenizer("abc")).tokens.tolist() == [2, 0, 1]
    assert kept() == before, "what is there is used when a run is resumed"
    with pytest.raises(UserError, match="never seen 'b'"):
        load_corpus(config, CharTokenizer("ac"))


# --- sub-words -----------------------------------------------------------------------------------

LINES = "the first line of it\n  and, it's\r\nthe second\n\n\tthe third été 日本 line\n"


def test_sub_words_of_a_text_are_its_text(workplace: Path) -> None:
    Path("t.txt").write_bytes((LINES * 9).encode())
    corpus = load("t.txt", tokenizer="bpe", vocab_size=290)
    tokenizer = corpus.tokenizer
    assert isinstance(tokenizer, BPETokenizer) and tokenizer.vocab_size == 290
    assert tokenizer == train_bpe([LINES * 9], 290)
    assert corpus.tokens.tolist() == tokenizer.encode(LINES * 9).tolist()
    assert isinstance(corpus.tokens, np.memmap) and corpus.tokens.dtype == np.uint16
    assert corpus.info == {
        "source": "t.txt",
        "sha256": hashlib.sha256((LINES * 9).encode()).hexdigest(),
        "characters": len(LINES * 9),
        "tokens": len(corpus.tokens),
        "start_token": tokenizer.encode("\n")[0],
    }


@given(
    texts=st.lists(st.text(st.sampled_from("ab \n\r\t'é日"), max_size=99), min_size=1, max_size=3),
    chunk=st.integers(1, 40),
)
@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_sub_words_in_chunks_are_the_text(workplace: Path, texts: list[str], chunk: int) -> None:
    """Wherever the end of a chunk cuts it, and where no line ends in many."""
    texts = [texts[0] + ODD, *texts[1:]]
    for i, text in enumerate(texts):
        Path(f"{i}.txt").write_bytes(text.encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(data.sources, "CHUNK_BYTES", chunk)
        corpus = load([f"{i}.txt" for i in range(len(texts))], tokenizer="bpe", vocab_size=270)
    assert text_of(corpus) == "".join(texts)
    assert corpus.info["characters"] == len("".join(texts))
    assert corpus.info["tokens"] == len(corpus.tokens)


def test_sub_words_in_chunks_are_those_of_the_whole(workplace: Path) -> None:
    """All of them where a line ends in each chunk, and nearly all where not."""
    text = LINES * 40
    Path("t.txt").write_bytes(text.encode())
    whole = load("t.txt", tokenizer="bpe", vocab_size=300)
    for chunk in (50, 77, 1000):
        os.utime("t.txt", ns=(0, chunk))  # another entry in the cache
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(data.sources, "CHUNK_BYTES", chunk)
            config = DataConfig(source="t.txt", tokenizer="bpe", vocab_size=300)
            parts = load_corpus(config, whole.tokenizer)
        assert np.array_equal(parts.tokens, whole.tokens)
    for chunk, most in ((1, 9.0), (30, 1.2)):
        os.utime("t.txt", ns=(0, chunk))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(data.sources, "CHUNK_BYTES", chunk)
            parts = load_corpus(config, whole.tokenizer)
        assert text_of(parts) == text
        assert 1.0 <= len(parts.tokens) / len(whole.tokens) < most


def test_another_number_of_sub_words_is_another_entry(
    workplace: Path, request: pytest.FixtureRequest
) -> None:
    Path("t.txt").write_text(LINES * 9)
    first = load("t.txt", tokenizer="bpe", vocab_size=280)
    other = load("t.txt", tokenizer="bpe", vocab_size=290)
    assert [c.tokenizer.vocab_size for c in (first, other)] == [280, 290]
    assert len(kept()) == 4
    load("t.txt", vocab_size=280)
    load("t.txt", vocab_size=290)
    assert len(kept()) == 6, "characters have no such number"
    request.getfixturevalue("no_reading")
    for corpus in (first, other):
        V = corpus.tokenizer.vocab_size
        again = load("t.txt", tokenizer="bpe", vocab_size=V)
        assert np.array_equal(again.tokens, corpus.tokens) and again.info == corpus.info
        config = DataConfig(source="t.txt", tokenizer="bpe", vocab_size=V)
        assert np.array_equal(load_corpus(config, corpus.tokenizer).tokens, corpus.tokens)
    with pytest.raises(TypeError):
        load("t.txt", tokenizer="bpe", vocab_size=281)


def test_sub_words_start_at_a_newline_or_the_commonest(workplace: Path) -> None:
    for text, start in (("aab\nc\n\nd", "\n"), ("xy xy xy xy", " xy")):
        Path("t.txt").write_text(text)
        corpus = load("t.txt", tokenizer="bpe", vocab_size=300)
        assert corpus.tokenizer.decode([corpus.info["start_token"]]) == start


def test_sub_words_of_what_is_no_text(workplace: Path) -> None:
    Path("good.txt").write_text("日本")
    Path("t.txt").write_bytes(b"ab\xffc")
    Path("empty.txt").touch()
    with pytest.raises(UserError, match=r"t.txt is not UTF-8 text: byte 2 is 0xff;"):
        load(["good.txt", "t.txt"], tokenizer="bpe")
    with pytest.raises(UserError, match=r"empty.txt is empty; name a source with text"):
        load("empty.txt", tokenizer="bpe")
    assert kept() == []


def test_the_manual_records_its_version_and_hash(workplace: Path) -> None:
    corpus = load(["pydocs"], separator="unused")
    assert corpus.info["source"] == f"the manual of Python {sys.version.split()[0]}"
    assert corpus.info["characters"] == len(text_of(corpus)) > 400_000
    assert hashlib.sha256(text_of(corpus).encode()).hexdigest() == corpus.info["sha256"]


# --- which source ------------------------------------------------------------------------------


def test_globs_and_odd_names(workplace: Path) -> None:
    for name in ("b", "a", "a[1]", "--x"):
        Path(f"{name}.txt").write_text(f"<{name}>")
    Path("c.txt").mkdir()
    assert text_of(load("?.txt")) == "<a><b>"
    assert text_of(load(["b.txt", "?.txt"], separator="--")) == "<b>--<a>--<b>"
    assert text_of(load("a[1].txt")) == "<a[1]>", "a name that exists is no pattern"
    assert text_of(load("--x.txt")) == "<--x>"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("pipe", "no text at pipe"),
        ("/dev/zero", "no text at /dev/zero"),
        (["full.txt", "pydocs"], "pydocs must stand alone"),
        (["repeat", "full.txt"], "repeat must stand alone"),
        (["hub:a/b", "full.txt"], "hub:a/b must stand alone"),
        *((f"hub:{x}", "is not a name") for x in ("./x", "a/..", "x", "a/b/c", "-a/b")),
    ],
)
def test_a_source_that_is_no_text(workplace: Path, source: str, message: str) -> None:
    Path("full.txt").write_text("full")
    os.mkfifo("pipe")
    with pytest.raises(UserError, match=message):
        load(source)
    assert not Path("cache").exists()


# --- once --------------------------------------------------------------------------------------


def test_the_same_source_is_read_once(workplace: Path, request: pytest.FixtureRequest) -> None:
    Path("t.txt").write_text("some text")
    first = load("t.txt")
    Path("moved.txt").write_text("some text")
    moved = load("moved.txt")
    assert text_of(moved) == "some text" and moved.info["source"] == "moved.txt"
    assert moved.info["sha256"] == first.info["sha256"]
    request.getfixturevalue("no_reading")
    again = load("t.txt")
    assert text_of(again) == "some text"
    assert (again.info, again.tokenizer) == (first.info, first.tokenizer)
    with pytest.raises(TypeError):
        load("t.txt", tokenizer="byte")


def test_nothing_is_no_text(workplace: Path) -> None:
    for name in ("a.txt", "b.txt"):
        Path(name).touch()
    for kind in KINDS:
        with pytest.raises(UserError, match=r"a.txt, b.txt is empty; name a source with text"):
            load(["a.txt", "b.txt"], tokenizer=kind)
    assert kept() == []


def test_another_text_is_read_anew(workplace: Path) -> None:
    """Of another time, of another size, in another order, with another separator."""
    for name in ("a.txt", "b.txt"):
        Path(name).write_text(f"text of {name}")
    a, b = Path("a.txt"), Path("b.txt")
    time = a.stat().st_mtime_ns
    for names, separator, of_a, later in (
        ([a, b], "", "text of a.txt", 0),
        ([a, b], "", "TEXT of a.txt", 1),
        ([a, b], "", "longer text of a.txt", 1),
        ([b, a], "", "longer text of a.txt", 1),
        ([b, a], "|", "longer text of a.txt", 1),
    ):
        a.write_text(of_a)
        os.utime(a, ns=(0, time + later))
        expected = separator.join(path.read_text() for path in names)
        assert text_of(load([str(path) for path in names], separator=separator)) == expected


@pytest.mark.parametrize("moment", ["find_characters", "write_tokens"])
@pytest.mark.parametrize("changed", ["abcx", None])
def test_a_text_that_changes_while_it_is_read_is_refused(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, moment: str, changed: str | None
) -> None:
    """Here by one of the same length, or by none; whatever else it brings about, that is said."""
    path = Path("t.txt")
    path.write_text("abcd")
    os.utime(path, ns=(0, 0))
    step = getattr(data.corpus, moment)

    def step_and_change(*args: Any) -> Any:
        result = step(*args)
        path.write_text(changed) if changed else path.unlink()
        return result

    monkeypatch.setattr(data.corpus, moment, step_and_change)
    message = "changed while it was read" if changed else "no text at t.txt"
    with pytest.raises(UserError, match=message):
        load("t.txt")
    assert kept() == []


def test_a_second_process_waits_for_the_first(
    workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("t.txt").write_text("some text")
    make = data.corpus.make_entry
    found: list[Corpus] = []

    def make_once(*args: Any) -> None:
        other.start()  # raises if called a second time
        make(*args)

    other = threading.Thread(target=lambda: found.append(load("t.txt")))
    monkeypatch.setattr(data.corpus, "make_entry", make_once)
    first = load("t.txt")
    other.join()
    assert text_of(found[0]) == text_of(first) == "some text"


# --- whole or absent ---------------------------------------------------------------------------


@pytest.mark.parametrize("calls", range(7))
def test_killed_anywhere_nothing_is_left_or_used(workplace: Path, calls: int) -> None:
    """Before each rename, sync, and reading; the next start, of any text, begins with nothing."""
    texts = {"t.txt": "one two three", "other.txt": "other"}
    for name, text in texts.items():
        Path(name).write_text(text)
    left = calls

    def killing(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            nonlocal left
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*args, **options)

        return call

    child = os.fork()
    if child == 0:
        try:
            data.corpus.read_chunks = killing(data.corpus.read_chunks)
            for name in ("fsync", "rename", "replace"):
                setattr(os, name, killing(getattr(os, name)))
            load("t.txt")
        finally:
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    made = {path.name for path in Path("cache/tokens").glob("*") if path.suffix != ".lock"}
    assert all(name.startswith("making-") for name in made), "what was interrupted would be found"
    for name in sorted(texts, reverse=calls % 2 == 0):
        assert text_of(load(name)) == texts[name]


@pytest.mark.parametrize("linked", [False, True])
def test_what_others_keep_in_the_cache_stays(workplace: Path, linked: bool) -> None:
    """Whatever it is called, also behind a link; nothing of ours is left beside it."""
    theirs = [Path(f"cache/{name}/chapter.tex") for name in ("scratch/thesis", "tokens/making-x")]
    if linked:
        Path("elsewhere").mkdir()
        Path("cache").symlink_to("elsewhere")
    for path in theirs:
        path.parent.mkdir(parents=True)
        path.write_text("years of work")
    Path("t.txt").write_text("some text")
    Path("bad.txt").write_bytes(b"\xff")
    load("t.txt")
    with pytest.raises(UserError, match="not UTF-8"):
        load("bad.txt")
    assert all(path.read_text() == "years of work" for path in theirs)
    assert len(kept()) == len(theirs) + 2


def test_the_environment_names_the_cache(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("t.txt").write_text("some text")
    monkeypatch.setenv("GLASSGPT_CACHE", "fast disk")
    load("t.txt")
    assert len(list(Path("fast disk").glob("tokens/*/tokens.bin"))) == 1
    assert not Path("cache").exists()
    monkeypatch.setenv("GLASSGPT_CACHE", "t.txt")
    with pytest.raises(NotADirectoryError):
        load("t.txt", tokenizer="byte")


# --- a text that only a saved run names --------------------------------------------------------


def test_a_saved_run_has_nothing_read_or_written(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """That is new here: a run from elsewhere may name a private file, or a download."""
    monkeypatch.setattr("datasets.load_dataset", lambda *_, **__: pytest.fail("it downloads"))
    Path("private.txt").write_text("a secret text to keep\n" * 40)
    for source, flag in (
        ("private.txt", "--data.source private.txt"),
        ("priv*.txt", "--data.source 'priv*.txt'"),
        ("hub:acme/tiny", "--data.source hub:acme/tiny"),
    ):
        make_run(Path("runs/theirs"), source=source)
        for main, argv in (
            (train.main, ["--resume=theirs", "--train.max_steps=9"]),
            (train.main, ["--evaluate=theirs"]),
            (train.main, ["--init_from=theirs", "--run=mine"]),
            (study.main, ["heads", "theirs"]),
            (study.main, ["trace", "theirs"]),
            (study.main, ["report", "theirs"]),
        ):
            capsys.readouterr()
            assert main(argv) == 2
            said = capsys.readouterr().err.splitlines()[-1]
            wanted = flag if main is train.main else flag.replace("--data.", "--")
            assert said.startswith("error: only the saved run names ") and said.endswith(wanted)
    assert {path.name for path in workplace.iterdir()} == {"private.txt", "runs"}


def test_what_the_user_names_or_read_before_is_read(workplace: Path) -> None:
    Path("t.txt").write_text("a text to keep\n" * 40)
    Path("file.yaml").write_text("data: {source: t.txt}")
    make_run(Path("runs/theirs"), source="t.txt")
    heads = ["heads", "theirs", "--sequences=2"]
    tune = ["--init_from=theirs", "--train.max_steps=1", "--train.sample_tokens=0"]
    for main, argv in (
        (train.main, [*tune, "--data.source=t.txt"]),
        (train.main, [*tune, "file.yaml"]),
        (study.main, [*heads, "--source=t.txt"]),
    ):
        assert study.main(heads) == 2
        assert main(argv) == 0
        assert study.main(heads) == 0, "its tokens are here now"
        shutil.rmtree("cache")
    make_run(Path("runs/manual"), chars=None, source="pydocs")
    assert study.main(["heads", "manual", "--sequences=2"]) == 0


def test_a_full_disk_names_the_place(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("t.txt").write_text("abcd")

    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space") as error:
        patch.setattr(data.corpus, "sync", full)
        load("t.txt")
    assert str(error.value.filename).startswith("cache/tokens/making-")
    assert kept() == []
    assert text_of(load("t.txt")) == "abcd"


def forged(content: bytes) -> bytes:
    other = {"tokenizer": {"kind": "char", "chars": "wxyz"}}
    return json.dumps(json.loads(content) | other).encode()


@pytest.mark.parametrize("name", ["tokens.bin", "corpus.json"])
def test_a_damaged_entry_is_named(workplace: Path, name: str) -> None:
    Path("t.txt").write_text("dcba" * 300)
    load("t.txt")
    (path,) = Path("cache/tokens").glob(f"*/{name}")
    content = path.read_bytes()
    damaged = [b"", content[:-1], content[:-1] + bytes([content[-1] ^ 1])]
    if name == "corpus.json":
        damaged += [b"\xff\0", b"[]", b"[" * 100_000, forged(content)]
    message = rf"kept in {path.parent} are damaged .*; delete that folder"
    for other in (*damaged, None):  # at last a pipe
        path.unlink()
        path.write_bytes(other) if other is not None else os.mkfifo(path)
        with pytest.raises(UserError, match=message):
            load("t.txt")


# --- a dataset on the hub ----------------------------------------------------------------------


def write_rows(path: Path, rows: list[str | None], time: int = 0) -> None:
    from datasets import Dataset

    path.parent.mkdir(parents=True, exist_ok=True)
    columns = {"text": rows, "number": list(range(len(rows)))}
    Dataset.from_dict(columns).to_parquet(path)
    os.utime(path, ns=(0, 10**9 * time))


@pytest.fixture
def tiny(workplace: Path) -> Path:
    """A dataset in the hub's layout: `datasets` takes a local folder of that name for it."""
    folder = workplace / "acme" / "tiny"
    write_rows(folder / "train-00000-of-00001.parquet", ["one\r\n", None, "two ", "é"])
    write_rows(folder / "validation-00000-of-00001.parquet", ["three"])
    return folder


def test_a_dataset_is_joined_and_read_once(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    source = "hub:acme/tiny"
    assert text_of(load(source, hub_split="train+validation")) == "one\r\ntwo éthree"
    monkeypatch.setattr(data.sources, "ROWS", 2)
    assert text_of(load(source, separator="|")) == "one\r\n||two |é"
    assert {path.name for path in Path("cache").iterdir()} == {"hub", "tokens"}
    request.getfixturevalue("no_reading")
    corpus = load(source, hub_split="train+validation")
    assert text_of(corpus) == "one\r\ntwo éthree"
    assert corpus.info["source"] == "hub:acme/tiny train+validation at main"
    for option in ("hub_split", "hub_column", "hub_config", "hub_revision", "separator"):
        with pytest.raises(TypeError):  # another dataset, which would have to be read
            load(source, **{"hub_split": "train+validation", option: "x"})


def test_what_a_dataset_has_not(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for column in ("number", "x"):
        with pytest.raises(UserError, match=rf"no text in column '{column}'; .*: text, number$"):
            load("hub:acme/tiny", hub_column=column)
    for option in ("hub_split", "hub_config"):
        with pytest.raises(UserError, match=r"could not load hub:acme/tiny .*absent"):
            load("hub:acme/tiny", **{option: "absent"})
    write_rows(tiny / "train-00000-of-00001.parquet", ["", ""], time=1)
    with pytest.raises(UserError, match="hub:acme/tiny train at main is empty"):
        load("hub:acme/tiny")
    import datasets

    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    with pytest.raises(UserError, match=r"could not load hub:no/such-set .* --data.source FILE"):
        load("hub:no/such-set")
