"""Lines are broken and read as benchmarks.line_end says, and each case has its row."""

import json
import re
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

from benchmarks import attention, common, line_end
from benchmarks.probe import auc
from benchmarks.wrapped import ends_of_words, indent, joined, paragraphs, rewrap

WORDS = re.findall(
    r"\w+", "a line ends where the next word is too long for what is left of it, then"
)


def write(width: int | None, paragraphs: int = 40) -> str:
    """Return random words in indented paragraphs, between short lines."""
    random, parts = np.random.default_rng(0), []
    for i in range(paragraphs):
        words = random.choice(WORDS, 60)
        paragraph = " " * (i % 3) + " ".join(words)
        parts += [f"{i}. part", "", rewrap(fold(paragraph, 70), width), ""]
    return "\n".join(parts)


def fold(paragraph: str, width: int) -> str:
    """Break a line greedily, word by word."""
    spaces = indent(paragraph)
    lines = [spaces]
    for word in paragraph.split():
        start = lines[-1] if lines[-1] == spaces else lines[-1] + " "
        if len(start + word) > width:
            lines.append(spaces + word)
        else:
            lines[-1] = start + word
    return "\n".join(lines)


@pytest.mark.parametrize("width", [50, 90])
def test_rewrapped_paragraphs_are_greedy_and_the_rest_stays(width: int) -> None:
    text = write(70)
    wrapped = rewrap(text, width)
    assert wrapped.split() == text.split() and wrapped != text
    assert all(len(line) <= width for line in wrapped.split("\n"))
    whole = [lines for lines in paragraphs(wrapped, width) if len(lines) > 1]
    assert len(whole) == 40
    for lines in whole:
        assert fold(joined(lines), width).split("\n") == [line for _, line in lines]
        assert all(wrapped[start:].startswith(line) for start, line in lines)
    assert re.findall(r"^\d+. part$", wrapped, re.MULTILINE) == [f"{i}. part" for i in range(40)]


def test_ends_of_words_say_what_follows_and_what_would_fit() -> None:
    text = "to be\n\n  " + "ab " * 5 + "cdefg\n  hi jk lmn\n\nout"
    ends = ends_of_words(text, 25)
    inside = re.finditer(r"(?<=\S)\s", text[7:-6])  # without "to be", "lmn" and "out"
    assert ends.position.tolist() == [7 + end.start() for end in inside]
    assert ends.column.tolist() == [4, 7, 10, 13, 16, 22, 4, 7]
    assert ends.breaks.tolist() == [False] * 5 + [True] + [False] * 2
    assert ends.fits.tolist() == [True] * 5 + [True] + [True] * 2  # "hi" ends at column 25
    assert not ends_of_words(text, 24).fits[5]
    assert auc(ends.column.astype(float), ends.breaks) == 1


class Now:
    """A pool that works in this thread, because train.py handles signals."""

    def submit(self, job: Callable[[], common.Row]) -> Future[common.Row]:
        done = Future[common.Row]()
        done.set_result(job())
        return done


@pytest.fixture
def flags(workplace: Path, in_process: None, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return flags of short training on a small text."""
    monkeypatch.setattr(line_end, "LINES", 10)
    for benchmark in (attention, line_end):
        monkeypatch.setattr(benchmark, "ThreadPoolExecutor", lambda count: nullcontext(Now()))
    Path("text.txt").write_text(write(70, 60), newline="\n")
    shape = ["--model.n_embd=16", "--model.block_size=192"]
    steps = ["--train.max_steps=2", "--train.batch_size=2", "--train.log_every=1"]
    return ["--data.source=text.txt", "--data.val_fraction=0.4", *shape, *steps]


@pytest.mark.slow
def test_rows_are_of_each_text_and_seed(
    flags: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Also of one that is not wrapped, in which nothing is found."""
    assert line_end.main([*flags, "--model.n_layer=3", "--model.n_head=2", "--seeds=2"]) == 0
    rows = json.loads(capsys.readouterr().out.splitlines()[-1])["rows"]
    assert {row["text"]: len(row["share"]) for row in rows} == {
        "70 columns": 2,
        "70 columns, positions none": 2,
        "50 columns": 2,
        "90 columns": 1,
        "not wrapped": 1,
    }
    wrapped, _, narrow, wide, joined = rows
    assert narrow["forced"][0] > wrapped["forced"][0] > wide["forced"][0] > 10
    assert {"heads", "R2_embedding", "R2_layer_2"} <= {*wrapped} - {*joined}
