"""The parts of benchmarks.line_end on texts whose lines are known, and on a model that breaks them
where it was told to."""

import json
import math
import re
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import chdir, nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch

import train
from benchmarks import attention, common, line_end
from benchmarks.line_end import (
    LongLines,
    Validation,
    by_column,
    by_ngrams,
    crossing,
    find_heads,
    log_probabilities,
    measure_choice,
    measure_moves,
    nats,
    read_column,
)
from benchmarks.probe import auc
from benchmarks.wrapped import Ends, ends_of_words, indent, joined, paragraphs, rewrap
from configs.config import DataConfig, ModelConfig
from data.batches import Batches, text_batches
from data.corpus import load_text
from lens.capture import blocks_of
from lens.ngram_model import ngrams_of
from model.gpt import GPT
from tests.lens.models import make_model, some_tokens

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


@pytest.fixture
def batches(workplace: Path) -> Batches:
    Path("text.txt").write_text(write(70), newline="\n")
    data = DataConfig(source="text.txt", val_fraction=0.4)
    return text_batches(load_text(data), data, 192, seed=0)


@torch.no_grad()
def ruler(batches: Batches) -> GPT:
    """Return a model whose head L0H1 attends to a newline that is near, and lowers the probability
    of another, which is 0.9 otherwise. Scores are 60 cos(0.0178 d) at a newline d positions back,
    and 18 elsewhere. Other parts do nothing."""
    V, C, D = batches.tokenizer.vocab_size, 128, 64
    newline, space = (int(batches.tokenizer.encode(char)[0]) for char in "\n ")
    config = ModelConfig(block_size=192, n_layer=1, n_head=2, n_embd=C, qk_norm=False)
    model = GPT(config, V).eval()
    model.token_embedding.weight[:] = torch.eye(V, C)
    model.token_embedding.weight[:, C - 1] = 5.0  # the same for all tokens
    attn, norm = blocks_of(model)[0].attn, blocks_of(model)[0].attn_norm
    is_token_VC = torch.linalg.pinv(norm(model.token_embedding.weight)).T
    any_C = is_token_VC.sum(0)
    for linear in (attn.query, attn.key, attn.value):
        linear.weight.zero_()
    turning, still = D + 14, D + 31  # by 10,000^(-14/32), and 10,000^(-31/32), per position
    attn.query.weight[[turning, still]] = any_C
    attn.key.weight[turning] = 8 * 60 * is_token_VC[newline]  # the product is divided by 8
    attn.key.weight[still] = 8 * 18 * (any_C - is_token_VC[newline])
    attn.value.weight[D] = is_token_VC[newline]
    attn.out.weight[C - 2, D] = 1.0
    assert model.head is not None
    model.head.weight.zero_()
    same, written = (torch.eye(C)[i] for i in (C - 1, C - 2))
    model.head.weight[newline] = same - 2 * written
    model.head.weight[space] = 0.8 * same
    return model


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
    one = rewrap(text, None)
    assert one.split() == text.split() and one.count("\n") == 40 * 4 - 1
    assert max(map(len, one.split("\n"))) > 150


def test_code_and_other_indentations_are_no_paragraph() -> None:
    code = "def f(x):\n    return x\n\n" + "x" * 50 + "\n  " + "y" * 50 + "\n"
    assert [len(lines) for lines in paragraphs(code, 70)] == [1, 1, 1, 1]
    assert rewrap(code, 30) == code and not len(ends_of_words(code, 70).position)


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


def test_every_prediction_has_read_half_a_context(batches: Batches) -> None:
    split = Validation(batches)
    position = np.arange(len(split.tokens))
    known = split.known(position)
    assert known.argmax() == 97 and known.sum() > len(position) - 192 - 96
    sequence, query = split.find(position[known])
    assert (query >= 96).all() and (query < 192).all()
    assert torch.equal(split.sequences_BT[sequence, query + 1], split.tokens[position[known]])
    assert len({*zip(sequence, query, strict=True)}) == known.sum()
    assert split.text == batches.tokenizer.decode(split.tokens.tolist())


def test_ngrams_and_a_table_of_columns_predict_both_continuations(batches: Batches) -> None:
    split = Validation(batches)
    ends = ends_of_words(split.text, 70)
    position = ends.position[split.known(ends.position)][:20]
    found = by_ngrams(ngrams_of(batches), split, position)
    for token, log_p in zip((split.newline, split.space), found, strict=True):
        for place, each in zip(position, log_p, strict=True):
            tokens = split.tokens.numpy().copy()
            tokens[place] = token
            assert each == pytest.approx(-ngrams_of(batches).read(tokens)[0][place], abs=1e-6)
    newline, space = by_column(ends, np.array([20, 70, 10**6]))
    assert newline[0] < space[0] and newline[1] > space[1] and newline[2] > space[2]
    breaks = int(ends.breaks[ends.column == 70].sum())
    assert newline[1] == pytest.approx(math.log(breaks + 0.1))
    log_p = np.log([[0.2, 0.5], [0.6, 0.1]])
    choice = np.array([True, False])
    assert nats(log_p, choice) == pytest.approx(-(math.log(0.2 / 0.8) + math.log(0.1 / 0.6)) / 2)


def test_head_that_measures_the_distance_is_found_and_its_ruler_moves(
    batches: Batches, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the two scores are equal, the head lets go of the newline: about 66 positions back."""
    monkeypatch.setattr(line_end, "LINES", 40)
    model, split = ruler(batches), Validation(batches)
    ends = ends_of_words(split.text, 70)
    ends = Ends(*(each[split.known(ends.position)] for each in ends))
    assert find_heads(model, split, ends) == [(0, 1)]
    frequency, others = 10_000 ** (-14 / 32), 160  # positions before the end of a line
    end = math.acos((18 + math.log(others)) / 60) / frequency
    lines = LongLines(split, batches, 70)
    newline = lines.sequences_BT[:, lines.half - 1] == split.newline
    assert newline.all() and not (lines.sequences_BT[:, lines.half :] == split.newline).any()
    found = measure_moves(model, lines, [(0, 1)], 70)
    assert found["share"] == pytest.approx(1)
    assert found["break"] == pytest.approx(end, abs=3)
    assert found["slope"] == pytest.approx(1, abs=0.05)
    assert found["slope_one_key"] == pytest.approx(1, abs=0.05)
    assert found["slope_others"] == pytest.approx(0, abs=1e-6)
    assert found["P_middle"] < 0.15 and found["P_middle_hidden"] > 0.6 and found["P_end"] > 0.7
    nothing = measure_moves(model, lines, [(0, 0)], 70)
    assert [nothing["share"], nothing["slope"]] == pytest.approx([0, 0], abs=1e-6)
    assert nothing["slope_others"] == pytest.approx(found["slope"])
    choice = measure_choice(model, batches, split, ends, 70)
    assert choice["AUC"] > 0.99 and choice["AUC_column"] > 0.99 and choice["AUC_ngrams"] < 0.6
    assert choice["P_forced"] > 0.7 and choice["P_fits"] < 0.15
    embedding, layer = read_column(model, split, 70)
    assert -0.1 < embedding < 0.05 < layer


class Now:
    """A pool that works in this thread, because train.py handles signals."""

    def submit(self, job: Callable[[], common.Row]) -> Future[common.Row]:
        done = Future[common.Row]()
        done.set_result(job())
        return done


@pytest.fixture
def flags(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return flags of short training on a small text; all of it runs in this process."""

    def run_here(arguments: list[str], folder: Path) -> tuple[float, str]:
        monkeypatch.setenv("GLASSGPT_CACHE", "cache")  # which the last measurement changed
        with chdir(folder):
            assert train.main(arguments[1:]) == 0
        return 1.5, ""

    monkeypatch.setattr(common, "run_command", run_here)
    monkeypatch.setattr(common, "in_fresh_process", lambda function, *args: function(*args))
    monkeypatch.setattr(common, "matmul_gflops", lambda device, dtype: 0.5)
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
    wrapped, none, narrow, wide, joined = rows
    assert narrow["forced"][0] > wrapped["forced"][0] > wide["forced"][0] > 10
    assert len({*wrapped["AUC"], *none["AUC"]}) == 4 and "slope" not in {*none, *joined}
    assert {"heads", "R2_embedding", "R2_layer_2"} <= {*wrapped} - {*joined}
    assert wrapped["heads"].count(";") == 1 and wrapped["shown"] == "0 of 2"


@pytest.mark.slow
def test_configs_of_attention_have_a_row_each(
    flags: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert attention.main([*flags, "--model.n_layer=1", "--seeds=1"]) == 0
    rows = json.loads(capsys.readouterr().out.splitlines()[-1])["rows"]
    assert [row["config"] for row in rows] == [
        "default", "attention_only", "multi_query", "one_head", "window"
    ]  # fmt: skip
    cache = [row["cache_per_token"] for row in rows]
    assert cache == [[32.0], [32.0], [8.0], [32.0], [32.0]]
    assert len({row["loss"][0] for row in rows}) == 5
    assert rows[1]["parameters"][0] == rows[0]["parameters"][0] - (8 * 16 * 16 + 16)
    assert all(0 < score < 1 for row in rows for score in row["previous"])


def test_crossing_is_interpolated() -> None:
    curve = np.array([9.0, 0, 0, 1, 3, 5, 0])
    assert crossing(curve, 2.0, 2) == 4.5 and crossing(curve, 1.0, 2) == 4
    assert crossing(curve, 2.0, 1) == 1 and crossing(curve, 0.0, 3) == 3
    assert math.isnan(crossing(curve, 6.0, 2))


@torch.no_grad()
def test_log_probabilities_are_those_of_the_chosen_tokens() -> None:
    model, tokens = make_model(), some_tokens(5, 12)
    exponents = model(tokens[:, :-1]).exp()
    expected = exponents[..., [7, 2]] / exponents.sum(-1, keepdim=True)
    assert torch.allclose(log_probabilities(model, tokens, [7, 2]).exp(), expected, atol=1e-6)
