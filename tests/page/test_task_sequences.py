"""The tasks of the page make the sequences of data/tasks/ from the same random numbers."""

import dataclasses
from typing import Any

import numpy as np
import pytest

from configs.config import DataConfig
from data.tasks import TASKS
from page.playground import playground_data

SETTINGS: list[tuple[int, dict[str, Any]]] = [
    (14, {"source": "repeat", "task_kinds": 20, "task_length": 7}),
    (40, {"source": "repeat_fixed", "task_kinds": 20, "task_length": 9}),
    (1, {"source": "sink"}),
    (64, {"source": "sink", "task_kinds": 7}),
    (2, {"source": "markov", "task_kinds": 5}),
    (4, {"source": "modular", "task_held_out": 0.7}),
    (64, {"source": "addition"}),
    (33, {"source": "addition", "task_order": "lowest", "task_length": 2, "task_held_out": 0.5}),
    (40, {"source": "addition", "task_order": "carry"}),
    (1, {"source": "flipflop", "task_ignored": 0.9}),
    (37, {"source": "brackets", "task_kinds": 2, "task_length": 3}),
    (1, {"source": "wrap"}),
    (50, {"source": "wrap", "task_kinds": 26, "task_length": 7}),
    (20, {"source": "recall", "task_kinds": 9, "task_length": 4}),
    (2, {"source": "maximum", "task_kinds": 500, "task_length": 1}),
    (4, {"source": "maximum", "task_kinds": 9, "task_length": 3}),
    (59, {"source": "stories"}),
    (74, {"source": "stories", "task_kinds": 6, "task_length": 6}),
    (19, {"source": "stories", "task_kinds": 1, "task_length": 1}),
]
ASK = """([data, T, numbers, heldOut, typed = [], usual = []]) => {
  const task = new TASKS[data.source](data, T, usual);
  const sequences = numbers.map((u) => task.make(Float64Array.from(u), heldOut));
  const all = [...sequences, ...typed];
  return { vocab: task.vocab, words: task.words, numbers: task.numbers, sequences,
    answers: all.map((tokens) => task.answers(tokens)),
    match: all.map((tokens) => task.match(tokens)), baselines: task.baselines(sequences) };
}"""


@pytest.mark.parametrize(("T", "settings"), SETTINGS, ids=lambda value: str(value))
def test_sequences_are_those_of_python(engine: Any, T: int, settings: dict[str, Any]) -> None:
    """So are the keys and answers of any tokens, as of a typed prompt."""
    data = DataConfig(**settings)
    task, usual = TASKS[data.source](data, T), playground_data()["usual"][data.source]
    for held_out in (False, True):
        random = np.random.default_rng([3, held_out])
        u = random.random((40, task.numbers))
        u[:2] = [[0.0], [1 - 2.0**-32]]  # the smallest and the largest in the page
        sequences = task.make(u, held_out)
        typed = random.permuted(sequences[:, : T // 2 + 2], axis=1)
        given = [dataclasses.asdict(data), T, u.tolist(), held_out, typed.tolist(), usual]
        found = engine.evaluate(ASK, given)
        assert found["vocab"] == [*task.vocab] and found["numbers"] == task.numbers
        assert (found["words"] is None) == isinstance(task.vocab, str)
        assert found["sequences"] == sequences.tolist()
        for tokens, place in ((sequences, slice(40)), (typed, slice(40, 80))):
            assert found["answers"][place] == task.answers(tokens).tolist()
            match = [[np.flatnonzero(row).tolist() for row in rows] for rows in task.match(tokens)]
            assert [[sorted(keys) for keys in rows] for rows in found["match"][place]] == match
        # "chance" is estimated from other random numbers.
        assert found["baselines"] == pytest.approx(task.baselines(sequences), rel=0.02)


def test_text_holds_out_its_last_tenth(engine: Any) -> None:
    data = {"source": "text", "text": "ba" * 45 + "cd" * 5}
    u = [[x / 100] for x in range(100)]
    seen, held_out = (engine.evaluate(ASK, [data, 5, u, split]) for split in (False, True))
    assert seen["vocab"] == [*"abcd"]
    assert {*map(tuple, seen["sequences"])} == {(0, 1) * 3, (1, 0) * 3}
    assert {*map(tuple, held_out["sequences"])} == {(2, 3) * 3, (3, 2) * 3}
    assert held_out["baselines"]["bigram"] > seen["baselines"]["unigram"]
    assert seen["baselines"]["bigram"] < 0.1 < seen["baselines"]["unigram"]
