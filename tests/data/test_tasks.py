"""A task's sequences are sentences of its language, with the answers of an independent reading."""

import math
import re
from itertools import combinations, product
from typing import Any

import numpy as np
import pytest
import torch

from configs.config import DataConfig
from data.batches import Batches, task_batches
from data.tasks import TASKS
from data.tasks.task import Array

CASES: dict[str, tuple[int, int, dict[str, Any]]] = {  # block_size, checksum, settings
    "repeat": (24, 268703949, {"task_kinds": 20, "task_length": 12}),
    "repeat_fixed": (24, 270531116, {"task_kinds": 20, "task_length": 8}),
    "sink": (40, 392479133, {"task_kinds": 9}),
    "markov": (30, 67189392, {"task_kinds": 4}),
    "modular": (4, 10586377, {"task_kinds": 13, "task_held_out": 0.3}),
    "flipflop": (31, 115279677, {"task_ignored": 0.6}),
    "brackets": (40, 190071466, {"task_kinds": 3, "task_length": 4}),
    "addition": (42, 525999774, {"task_length": 2, "task_held_out": 0.3}),
    "addition lowest": (39, 452157730, {"task_length": 2, "task_order": "lowest"}),
    "addition carry": (39, 452167312, {"task_length": 2, "task_order": "carry"}),
    "recall": (40, 504070652, {"task_kinds": 7, "task_length": 5}),
    "wrap": (60, 539300589, {"task_kinds": 3, "task_length": 12}),
    "maximum": (6, 11047174, {"task_kinds": 13, "task_length": 5}),
    "stories": (58, 1655530720, {"task_kinds": 4, "task_length": 5}),
}
OPEN, CLOSE, NUMBERS = "([{", ")]}", {*map(str, range(13))}
every_task = pytest.mark.parametrize("case", CASES)


def make(case: str, seed: int = 0, **changes: Any) -> Batches:
    T, _, settings = CASES[case]
    return task_batches(DataConfig(source=case.split()[0], **(settings | changes)), T, seed)


def texts(batches: Batches, tokens: Array) -> list[Any]:
    """Return each sequence as a text or, if numbers are tokens, as a list of words."""
    tokenizer = batches.tokenizer
    if tokenizer.kind == "word":
        return [[tokenizer.labels[i] for i in row] for row in tokens]
    return [tokenizer.decode(row) for row in tokens]


def answers_of(case: str, text: Any, keys: list[int]) -> set[str]:
    """Return the token that follows the beginning of a sentence, from the keys of its end."""
    if case == "modular":
        return {str(sum(int(text[key]) for key in keys) % 13)}
    if case.startswith("addition"):
        a, b, written = re.split("[+=]", text.split("\n")[-1])
        highest = f"{int(a) + int(b):03}"
        orders = {"lowest": highest[::-1], "carry": highest[0] + highest[:0:-1]}
        return {orders.get(case.split()[-1], highest)[len(written)]}
    if case == "maximum":
        largest = str(max(map(int, text[:-1])))
        assert [key for key, word in enumerate(text) if word == largest] == keys
        return {largest}
    if case == "stories":
        assert text[-2] == "still" and len(keys) == 1
        names = re.findall(rf"{text[-1]} (\w+)", " ".join(text))  # the last one counts
        assert text[keys[0]] == names[-1] and text[keys[0] - 1] == text[-1]
        return {names[-1]}
    if case == "wrap":  # a newline begins the text
        return {"\n" if len(text.split("\n")[-1]) >= 12 else " "}
    return {CLOSE[OPEN.index(text[key])] if case == "brackets" else text[key] for key in keys}


@every_task
def test_answers_are_what_the_matching_keys_determine(case: str) -> None:
    """tests/page compares the sequences, the match and the answers with those of JavaScript."""
    batches = make(case)
    task = batches.task
    assert task
    for held_out in (False, True):
        tokens = task.draw([5], 100, held_out)
        match, answers = task.match(tokens), task.answers(tokens)
        assert answers.any() == (case != "markov")
        written = texts(batches, tokens)
        for row, t in np.argwhere(answers).tolist():
            text, keys = written[row], np.flatnonzero(match[row, t - 1])
            assert answers_of(case, text[:t], keys.tolist()) == {text[t]}, text


@pytest.mark.parametrize("case", ["repeat", "brackets"])
def test_held_out_sequences_are_the_same_for_every_seed_and_no_batch_is_another(case: str) -> None:
    one, other = make(case), make(case, seed=1)
    batches = [each.train_batch(step, 256) for each in (one, other) for step in (0, 1)]
    for name in ("validation", "test", "training"):
        split = torch.cat([*one.split(name, 100)])
        assert torch.equal(split, torch.cat([*other.split(name, 256)]))
        assert torch.equal(split[:3], next(one.split(name, 9, 3 * one.block_size)))
        assert one.validation_tokens == split[:, 1:].numel()
        batches.append(split)
    assert not any(torch.equal(a, b) for a, b in combinations(batches, 2))
    assert torch.equal(batches[0], make(case).train_batch(0, 256))


@every_task
def test_sequences_are_the_same_in_every_version(case: str) -> None:
    """Never change the checksums: runs of earlier versions must resume with the same sequences."""
    batches = make(case, seed=7)
    drawn = [batches.train_batch(3, 50), *batches.split("validation", 256)]
    sampled = torch.cat(drawn).flatten()
    assert (sampled * torch.arange(len(sampled))).sum() == CASES[case][1]


def test_every_task_has_a_case() -> None:
    assert {case.split()[0] for case in CASES} == {*TASKS}


def test_stories_tell_what_each_animal_does_and_never_change_it_in_silence() -> None:
    """A name that is new comes after "Now"; one after "still" is the animal's last."""
    pattern = r"(The|Now the|In the end the) (\w+) (still )?(\w+) (\w+) \."
    doing, changed = dict[str, str](), 0
    for text in texts(make("stories"), make("stories").train_batch(0, 200).numpy()):
        sentences, whom = re.findall(pattern, told := " ".join(text)), dict[str, str]()
        assert len(sentences) == 10 and len(re.sub(pattern, "", told).split()) == 0
        for i, (begins, animal, still, does, who) in enumerate(sentences):
            assert doing.setdefault(animal, does) == does
            assert (begins == "The" and not still) == (i < 4) == (animal not in whom)
            assert (begins == "In the end the") == (i == 9)
            if i >= 4:
                assert (whom[animal] == who) == bool(still) == (begins != "Now the")
                changed += not still
            whom[animal] = who
        assert len(whom) == 4 and len({*whom.values()}) <= 4
    assert len({*doing.values()}) == 6 and 0.4 < changed / 1000 < 0.6


def test_each_sum_is_either_trained_or_held_out() -> None:
    batches = make("modular")
    trained = [batches.train_batch(0, 3000), *batches.split("training", 256)]
    validated, tested = batches.split("validation", 256), batches.split("test", 256)
    training, held_out = (
        {(a, b) for a, _, b, _, _ in texts(batches, torch.cat(drawn).numpy())}
        for drawn in (trained, [*validated, *tested])
    )
    assert not training & held_out
    assert training | held_out == {*product(NUMBERS, repeat=2)}
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
