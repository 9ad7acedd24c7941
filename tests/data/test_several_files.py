"""Several files, their order and their splits; texts that change."""

import dataclasses
import os
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import data.sources
import train
from common.errors import UserError
from configs.config import DataConfig
from data.batches import (
    cached_training_tokens,
    check_text,
    open_batches,
)
from data.corpus import load_text
from data.sources import find_files
from lens.subject import open_text
from tests.conftest import DEBUG
from training.checkpoint import load_checkpoint, open_run, save_checkpoint


def prose(length: int, seed: int) -> str:
    words = ["the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog\n"]
    choose = random.Random(seed)
    return " ".join(choose.choice(words) for _ in range(length))[:length]


def write(**texts: str) -> list[str]:
    """Write files; return their names."""
    for name, text in texts.items():
        Path(f"{name}.txt").write_bytes(text.encode())
    return [f"{name}.txt" for name in texts]


def split(source: Any, block_size: int = 4, **options: Any) -> tuple[str, str, str]:
    """Return the training, validation and test text."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("data.batches.SHORTEST_END", block_size)
        batches = open_batches(DataConfig(source=source, **options), block_size, 0)
    parts = batches.tokens.values()
    train, val, test = (batches.tokenizer.decode(part.tolist()) for part in parts)
    return train, val, test


@given(
    lengths=st.lists(st.integers(0, 400), min_size=1, max_size=4),
    test=st.sampled_from([0.0, 0.15, 0.4]),
)
def test_each_file_gives_its_own_end(workplace: Path, lengths: list[int], test: float) -> None:
    names = write(first=prose(200, 9), **{f"t{i}": prose(n, i) for i, n in enumerate(lengths)})
    expected = ["", "", ""]
    for name in names:
        text = Path(name).read_text()
        ends = [int(round(len(text) * (1 - 0.2 - test), 3)), len(text) - round(len(text) * test)]
        for i, part in enumerate(np.split([*text], ends)):
            expected[i] += "".join(part)
    assert split(names, val_fraction=0.2, test_fraction=test) == tuple(expected)


@given(
    lengths=st.lists(st.integers(0, 30), min_size=24, max_size=30),
    long=st.sampled_from([0, 300]),
    fractions=st.sampled_from([(0.1, 0.0), (0.25, 0.0), (0.1, 0.2)]),
)
def test_many_short_files_are_held_out_whole(
    workplace: Path, lengths: list[int], long: int, fractions: tuple[float, float]
) -> None:
    """Files that are long enough give their ends, as before. No text is in two splits or lost."""
    val, test = fractions
    letters = [chr(0x100 + i) for i in range(len(lengths))]
    texts = [letter * (n + 5) for letter, n in zip(letters, lengths, strict=True)]
    names = write(**{f"s{i}": text for i, text in enumerate(["-" * long, *texts]) if text})
    splits = split(names, val_fraction=val, test_fraction=test, block_size=12)
    sizes = [round(long * (1 - val - test)), round(long * val), round(long * test)]
    for text in texts:
        assert [text in part for part in splits].count(True) == 1
    for part, size in zip(splits, sizes, strict=True):
        assert part.count("-") == size
    held_out, tested = ([text for text in texts if text in part] for part in splits[1:])
    assert len(texts) * val <= len(held_out) < len(texts) * val + 2
    assert len(tested) == round(len(texts) * test)
    assert splits[1] == "-" * sizes[1] + "".join(held_out)


def test_runs_of_a_text_hold_out_the_same_files_and_say_so(workplace: Path) -> None:
    """Two files are too few. A run keeps the split that it began with, of the same text only."""
    names = write(**{f"p{i}": f"{chr(0x100 + i)}" * 19 + "\n" for i in range(60)})
    config = DataConfig(source=names, val_fraction=0.2)
    first, other = (open_batches(config, 16 - seed, seed) for seed in (0, 1))
    assert first.about.endswith(", 240 held out for validation (12 of 60 files held out whole)")
    assert np.array_equal(first.tokens["validation"], other.tokens["validation"])
    held_out = {*first.tokenizer.decode(first.tokens["validation"].tolist())} - {"\n"}
    drawn = {5, 14, 15, 29, 31, 33, 39, 41, 45, 49, 56, 59}  # never change them: runs keep them
    assert {ord(char) - 0x100 for char in held_out} == drawn
    again = open_batches(config, 8, 0, first.tokenizer, saved=first.corpus)
    earlier = dataclasses.replace(first.corpus, shortest_end=0)  # of a version without this field
    ends = open_batches(config, 16, 0, first.tokenizer, saved=earlier)
    assert np.array_equal(first.tokens["validation"], again.tokens["validation"])
    assert ends.about.endswith(" 240 held out for validation")
    assert len({batches.baselines_path for batches in (first, again, ends)}) == 2
    for saved in (first, ends):
        found = cached_training_tokens(config, saved.corpus, first.tokenizer)
        assert found is not None and np.array_equal(found, saved.tokens["training"])
    for val, test, count in ((0.2, 0.0, 16), (0.3, 0.2, 24)):
        few = DataConfig(source=names[:4], val_fraction=val, test_fraction=test)
        assert open_batches(few, 15, 0).about.endswith(f" {count} held out for validation")


def test_resumed_or_studied_run_keeps_its_split(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Here, one that began with an earlier version, also if the flag names its text."""
    write(**{f"p{i}": prose(80, i) for i in range(60)})
    assert train.main([DEBUG, "--data.source=p*.txt", "--train.max_steps=1", "--run=a"]) == 0
    assert "(6 of 60 files held out whole)" in capsys.readouterr().out
    path = Path("runs/a/last.safetensors")
    header, tensors = load_checkpoint(path)
    corpus = dataclasses.replace(header.corpus, shortest_end=0)
    save_checkpoint(path, tensors, dataclasses.replace(header, corpus=corpus))
    shutil.copy(path, "runs/a/best.safetensors")
    for more in ([], ["--data.source=p*.txt"]):
        assert train.main(["--resume=a", "--train.max_steps=2", *more]) == 0
        assert "held out whole" not in capsys.readouterr().out
    assert "held out whole" not in str(open_text(open_run("a"), None, 32))


def test_files_of_a_glob_are_in_natural_order_and_read_once(workplace: Path) -> None:
    write(**{f"ch{i}": f"{i} " * 40 for i in (10, 2, 1)})
    assert [path.name for path in find_files("ch*.txt")] == ["ch1.txt", "ch2.txt", "ch10.txt"]
    corpus = load_text(DataConfig(source=["ch1*.txt", f"{Path.cwd()}/ch1.txt", "*.txt"])).corpus
    assert corpus.source == "ch1.txt, ch10.txt, ch2.txt"
    assert corpus.parts == (80, 120, 80)


def test_text_of_the_same_size_and_time_is_another_text(workplace: Path) -> None:
    """Its time can be set back, but not the time of that change."""
    (name,) = write(text="ab" * 500)
    before, status = load_text(DataConfig(source=name)), Path(name).stat()
    Path(name).write_text("ba" * 500)
    os.utime(name, ns=(status.st_atime_ns, status.st_mtime_ns))
    after = load_text(DataConfig(source=name))
    assert before.corpus.sha256 != after.corpus.sha256 and after.tokens[0] != before.tokens[0]


def test_text_that_only_a_header_names_must_be_its_text(workplace: Path) -> None:
    """It may have been touched since, or the cache emptied."""
    (name,) = write(text=prose(900, 5))
    config = DataConfig(source=name)
    loaded = load_text(config)
    os.utime(name)
    check_text(config, loaded.tokenizer, loaded.corpus)


def test_newest_of_several_files_is_named_if_their_text_is_another_one(workplace: Path) -> None:
    names = write(**{f"ch{i}": prose(500, i) for i in range(3)})
    config = DataConfig(source="ch*.txt")
    loaded = load_text(config)
    for i, name in enumerate(names):
        os.utime(name, (1e9 - i, 1e9 - i))
    Path(names[1]).write_text(prose(499, 1))
    with pytest.raises(UserError, match=r"here \(the newest file is .*/ch1.txt\)$"):
        check_text(config, loaded.tokenizer, loaded.corpus)


def test_position_of_a_bad_byte_counts_from_the_start_of_the_file(workplace: Path) -> None:
    """Beyond the first chunk, which ends within a character, and at the end of the file."""
    before = "日é\n".encode() * 30_000
    assert len(before) > data.sources.CHUNK and data.sources.CHUNK % 6 == 2
    for rest in (b"\x92 and on", b"\xe6\x97"):
        Path("t.txt").write_bytes(before + rest)
        with pytest.raises(UserError, match=r"t.txt is not UTF-8 text at byte 180,000"):
            load_text(DataConfig(source="t.txt"))
