"""A task's sequences are sentences of its language, with the answers of an independent reading."""

import math
import re
from itertools import combinations, product
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


def answers_of(case: str, text: str, keys: set[int]) -> set[str]:
    """Return the token that follows the beginning of a sentence, from the keys of its end."""
    if case == "modular":
        return {DIGITS[sum(DIGITS.index(text[key]) for key in keys) % 13]}
    if case.startswith("addition"):
        a, b, written = re.split("[+=]", text.split("\n")[-1])
        highest = f"{int(a) + int(b):03}"
        orders = {"lowest": highest[::-1], "carry": highest[0] + highest[:0:-1]}
        return {orders.get(case.split()[-1], highest)[len(written)]}
    return {CLOSE[OPEN.index(text[key])] if case == "brackets" else text[key] for key in keys}


@every_task
@given(
    st.integers(0, 99),
    st.integers(1, 43),
    st.lists(st.tuples(st.integers(0, 99), st.integers(0, 99)), max_size=30),
)
def test_sentences_and_match_and_answers_are_those_of_a_slow_reading(
    case: str, seed: int, length: int, changes: list[tuple[int, int]]
) -> None:
    """Of sentences, and of those with any changes, as in a typed prompt. The slow reading of a
    query has only the text up to it, so that no key is after its query. A sentence has the tokens
    that its keys determine."""
    batches = make(case)
    tokens = batches.task.draw([seed], 2, held_out=seed % 2 == 1)[:, :length]
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
        for t in np.flatnonzero(answers[row]) if row == 1 else ():
            assert answers_of(case, text[:t], keys[t - 1]) == {text[t]}, text


@pytest.mark.parametrize("case", ["repeat", "brackets"])
def test_held_out_sequences_are_the_same_for_every_seed_and_no_batch_is_another(case: str) -> None:
    one, other = make(case), make(case, seed=1)
    batches = [each.train_batch(step, 256) for each in (one, other) for step in (0, 1)]
    for name in ("validation", "test", "training"):
        split = torch.cat([*getattr(one, f"{name}_batches")(100)])
        assert torch.equal(split, torch.cat([*getattr(other, f"{name}_batches")(256)]))
        assert torch.equal(split[:3], next(getattr(one, f"{name}_batches")(9, 3 * one.block_size)))
        assert one.validation_tokens == split[:, 1:].numel()
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


def test_each_sum_is_either_trained_or_held_out() -> None:
    batches = make("modular")
    trained = [batches.train_batch(0, 3000), *batches.training_batches(256)]
    training, held_out = (
        {*re.findall(r"(\w)\+(\w)=", "".join(texts(batches, torch.cat(drawn).numpy())))}
        for drawn in (trained, [*batches.validation_batches(256), *batches.test_batches(256)])
    )
    assert not training & held_out
    assert training | held_out == {*product(DIGITS, repeat=2)}
    assert len(held_out) / 13**2 == pytest.approx(0.3, abs=0.08)


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
