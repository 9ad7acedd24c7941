"""A task's sequences are sentences of its language, with the answers of an independent reading."""

import math
import re
from itertools import combinations, pairwise, product
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from data.batches import TaskBatches
from data.config import DataConfig
from data.tasks import TASKS, Array

CASES: dict[str, tuple[int, int, dict[str, Any]]] = {  # block_size, checksum, settings
    "repeat": (24, 280393454, {"repeat_vocab": 20, "repeat_min_period": 3, "repeat_max_period": 8}),
    "sink": (40, 392479133, {"task_kinds": 9}),
    "markov": (30, 67189392, {"task_kinds": 4}),
    "modular": (4, 10586377, {"task_kinds": 13, "task_held_out": 0.3}),
    "flipflop": (31, 115279677, {"task_ignored": 0.6}),
    "brackets": (40, 190071466, {"task_kinds": 3, "task_length": 4}),
    "addition": (42, 525999774, {"task_length": 2, "task_held_out": 0.3}),
    "addition lowest": (39, 452157730, {"task_length": 2, "task_order": "lowest"}),
    "addition carry": (39, 452167312, {"task_length": 2, "task_order": "carry"}),
    "recall": (40, 504070652, {"task_kinds": 7, "task_length": 5}),
}
OPEN, CLOSE, DIGITS = "([{", ")]}", "0123456789abc"
every_task = pytest.mark.parametrize("case", CASES)


def make(case: str, seed: int = 0, **changes: Any) -> TaskBatches:
    T, _, settings = CASES[case]
    return TaskBatches(DataConfig(source=case.split()[0], **(settings | changes)), T, seed)


def texts(batches: TaskBatches, tokens: Array) -> list[str]:
    return [batches.tokenizer.decode(row) for row in tokens]


def is_sentence(case: str, text: str) -> bool:
    if case == "repeat":
        return any(text[p:] == text[:-p] and len(set(text[:p])) == p for p in range(3, 9))
    if case == "sink":
        repeated = not re.search(r"(.)\d(?!\1|$)", text)
        return repeated and bool(re.fullmatch(r"\^[a-f][a-f0-2]*", text))
    if case == "markov":
        return set(text) <= set("abcd")
    if case == "modular":
        first, second, answer = map(DIGITS.index, text[::2])
        return text[1::2] == "+=" and (first + second) % 13 == answer
    if case == "flipflop":
        read_another = re.search(r"w(.)([ri].)*r(?!\1).", text)
        return not read_another and bool(re.fullmatch("w[01]([wri][01])*[wri]?", text))
    if case == "brackets":
        depths = [sum((char in OPEN) - (char in CLOSE) for char in text[:t]) for t in range(42)]
        while (shorter := re.sub(r"\(\)|\[\]|\{\}", "", text)) != text:
            text = shorter
        return set(text) <= set(OPEN) and max(depths) <= 4
    if case == "recall":
        pairs = {*zip(text[::2], text[1::2], strict=False)}
        keys = {*text[::2]}
        return keys <= set("abcdefg") and len({*dict(pairs)}) == len(pairs) <= len(keys) <= 5
    *sums, last = text.split("\n")
    for a, b, c in (re.split("[+=]", each) for each in sums):
        c = {"lowest": c[::-1], "carry": c[:1] + c[:0:-1]}.get(case.split()[-1], c)
        if int(a) + int(b) != int(c) or (len(a), len(b), len(c)) != (2, 2, 3):
            return False
    return bool(re.fullmatch(r"\d\d\+\d\d=\d{3}", last + "00+00=000"[len(last) :]))


def keys_of(case: str, text: str) -> set[int]:
    """Return the keys for the last token's query, which the next token cannot change."""
    last = len(text) - 1
    after_same = {i + 1 for i in range(last) if text[i] == text[last]}
    if case == "sink":
        return {last - 1} & {*range(last)} if text[last] in "012" else set()
    if case == "modular":
        return {0, 2} if last == 3 and text[1::2] == "+=" else set()
    if case == "flipflop":
        return {text.rindex("w") + 1} if "w" in text and text[last] == "r" else set()
    if case == "brackets":
        heights = [sum(1 - 2 * (char in CLOSE) for char in text[i:]) for i in range(last + 1)]
        unclosed = [i for i in range(last + 1) if max(heights[i:]) == heights[i] == 1]
        return {*unclosed[-1:]}
    if case == "recall":
        return after_same if text[last].islower() else set()
    if case.startswith("addition"):
        first = last - last % 10
        if not re.fullmatch(r"..\+..=.{0,2}", text[first:], re.DOTALL):
            return set()
        written = last % 10 - 5  # digits of the answer
        order = {"lowest": [1, 0, 0], "carry": [0, 1, 0]}.get(case.split()[-1], [0, 0, 1])
        digit = first + order[written]
        return {digit, digit + 3}
    return after_same


@every_task
def test_sequences_are_sentences_and_contexts_determine_the_answers(case: str) -> None:
    """Also those of the smallest and the largest random numbers. A sequence depends on its own
    numbers only."""
    batches = make(case)
    task, known = batches.task, dict[str, str]()
    for held_out in (False, True):
        tokens = task.draw([5], 400, held_out)
        if case != "repeat":  # which draws in another way
            u = np.random.default_rng([5]).random((400, task.numbers))
            u[:2] = [[0.0], [np.nextafter(1, 0)]]
            made = task.make(u, held_out)
            assert (made[2:] == tokens[2:]).all() and (task.make(u[9:], held_out) == made[9:]).all()
            tokens = np.concatenate([made, tokens])
        assert tokens.dtype == np.int64 and tokens.shape[1] == CASES[case][0] + 1
        for text, is_answer in zip(texts(batches, tokens), task.answers(tokens), strict=True):
            assert is_sentence(case, text), text
            for t in np.flatnonzero(is_answer):
                assert known.setdefault(text[:t], text[t]) == text[t]


@every_task
@given(
    st.integers(0, 99),
    st.integers(1, 43),
    st.lists(st.tuples(st.integers(0, 99), st.integers(0, 99)), max_size=30),
)
def test_match_and_answers_are_those_of_a_slow_reading(
    case: str, seed: int, length: int, changes: list[tuple[int, int]]
) -> None:
    """Of sentences, and of those with any changes, as in a typed prompt. The slow reading of a
    query has only the text up to it, so that no key is after its query."""
    batches = make(case)
    tokens = batches.task.draw([seed], 2, held_out=False)[:, :length]
    T = tokens.shape[1]
    for place, token in changes:
        tokens[0, place % T] = token % batches.tokenizer.vocab_size
    found = batches.task.match(tokens)
    assert found.shape == (2, T, T)
    answers = batches.answers(torch.from_numpy(tokens)).tolist()
    for row, text in enumerate(texts(batches, tokens)):
        keys = [keys_of(case, text[: t + 1]) for t in range(T)]
        assert [{*np.flatnonzero(query)} for query in found[row]] == keys
        closes = [case != "brackets" or char in CLOSE for char in text]
        determined = [t > 0 and closes[t] and keys[t - 1] != set() for t in range(T)]
        assert answers[row] == [each and case != "markov" for each in determined]


@every_task
def test_held_out_sequences_are_the_same_for_every_seed_and_no_batch_is_another(case: str) -> None:
    one, other = make(case), make(case, seed=1)
    batches = [each.train_batch(step, 256) for each in (one, other) for step in (0, 1)]
    for name in ("validation", "test", "training"):
        split = torch.cat([*getattr(one, f"{name}_batches")(100)])
        assert torch.equal(split, torch.cat([*getattr(other, f"{name}_batches")(256)]))
        assert torch.equal(split[:3], next(getattr(one, f"{name}_batches")(9, 3 * one.block_size)))
        batches.append(split)
    assert not any(torch.equal(a, b) for a, b in combinations(batches, 2))
    assert torch.equal(batches[0], make(case).train_batch(0, 256))


@every_task
def test_sequences_are_the_same_in_every_version(case: str) -> None:
    """Never change the checksums: runs of earlier versions must resume with the same sequences."""
    assert {case.split()[0] for case in CASES} == {*TASKS}
    batches = make(case, seed=7)
    drawn = [batches.train_batch(3, 50), *batches.validation_batches(256)]
    sampled = torch.cat(drawn).flatten()
    assert (sampled * torch.arange(len(sampled))).sum() == CASES[case][1]


@pytest.mark.parametrize("T", [1, 2])
@pytest.mark.parametrize("name", ["sink", "markov", "flipflop", "brackets", "recall"])
def test_context_may_be_one_or_two_tokens(name: str, T: int) -> None:
    batches = TaskBatches(DataConfig(source=name), T, 0)
    tokens = batches.train_batch(0, 9)
    assert tokens.shape == batches.answers(tokens).shape == (9, T + 1)
    assert 0.6 < min(batches.baselines.values()) < max(batches.baselines.values()) < 3.5


@pytest.mark.parametrize(("case", "size"), [("modular", 13), ("addition", 10)])
def test_each_sum_is_either_trained_or_held_out(case: str, size: int) -> None:
    batches = make(case, **({"task_length": 1} if case == "addition" else {}))
    trained = [batches.train_batch(0, 3000), *batches.training_batches(256)]
    training, held_out = (
        {*re.findall(r"(\w)\+(\w)=", "".join(texts(batches, torch.cat(drawn).numpy())))}
        for drawn in (trained, [*batches.validation_batches(256), *batches.test_batches(256)])
    )
    assert not training & held_out
    assert training | held_out == {*product(DIGITS[:size], repeat=2)}
    assert len(held_out) / size**2 == pytest.approx(0.3, abs=0.08)


# --- frequencies and baselines -------------------------------------------------------------------


def shares(tokens: Array, n: int) -> Any:
    return pytest.approx(np.bincount(tokens.ravel(), minlength=n) / tokens.size, abs=0.02)


def test_tokens_are_drawn_with_the_documented_probabilities() -> None:
    flipflop = make("flipflop").task.draw([1], 2000, held_out=False)
    assert shares(flipflop[:, 2::2], 3) == [0.2, 0.2, 0.6]
    assert shares(flipflop[:, 1::2] - 3, 2) == [0.5, 0.5]
    brackets = make("brackets").task.draw([1], 2000, held_out=False)
    opens = brackets < 3
    depth = (2 * opens - 1).cumsum(1)[:, :-1]
    assert shares(opens[:, 1:][(depth > 0) & (depth < 4)], 2) == [0.5, 0.5]
    assert shares(brackets[opens], 3) == [1 / 3] * 3
    recall = make("recall").task.draw([1], 2000, held_out=False)
    assert shares(recall[:, ::2], 7) == [1 / 7] * 7
    assert shares(recall[:, 1::2] - 7, 7) == [1 / 7] * 7
    assert np.mean([len({*row}) for row in recall[:, ::2]]) == pytest.approx(5, abs=0.1)
    sink: Any = make("sink").task
    drawn = sink.draw([1], 9000, held_out=False)
    before, after = drawn[:, 1:-1], drawn[:, 2:]
    assert shares(drawn[:, 1] - 1, 6) == [1 / 6] * 6
    for letter in range(6):
        row = sink.chain[letter]
        assert shares(after[before == letter + 1] - 1, 9) == row / row.sum()


def test_markov_chains_have_rows_of_dirichlet_and_baselines_that_count() -> None:
    config = DataConfig(source="markov", task_kinds=4)
    task = TASKS["markov"](config, 9000)
    u = np.random.default_rng(3).random((1, task.numbers))
    tokens = task.make(u, held_out=False)[0]
    for state, row in enumerate(-np.log(1 - u[0, :16]).reshape(4, 4)):
        assert shares(tokens[1:][tokens[:-1] == state], 4) == row / row.sum()
    validation = torch.cat([*make("markov").validation_batches(256)]).numpy()
    unigram, bigram = list[float](), list[float]()
    for row in validation.tolist():
        for t in range(1, len(row)):
            seen = [b for a, b in pairwise(row[:t]) if a == row[t - 1]]
            for losses, counted in ((unigram, row[:t]), (bigram, seen)):
                losses.append(-math.log((counted.count(row[t]) + 1) / (len(counted) + 4)))
    assert make("markov").baselines == pytest.approx(
        {
            "uniform": math.log(4),
            "in-context unigram": np.mean(unigram),
            "in-context bigram": np.mean(bigram),
        }
    )


def test_chance_knows_the_frequencies_at_each_position() -> None:
    """At odd positions of flipflop are bits, at even ones instructions. In modular, the second
    number and the answer are unknown."""
    instruction = -0.6 * math.log(0.6) - 0.4 * math.log(0.2)
    flipflop = (16 * math.log(2) + 15 * instruction) / 31
    for batches, V, chance in (
        (make("flipflop"), 5, flipflop),
        (make("modular", task_kinds=97, task_held_out=0.1), 99, 2 / 4 * math.log(97)),
    ):
        expected = pytest.approx(chance, abs=0.04)
        assert batches.baselines == {"uniform": math.log(V), "chance": expected}
