"""Counting in the page, in a browser, against data/counting.py and plain searches of the text."""

import json
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from data.config import DataConfig
from data.corpus import load_text
from data.counting import Counting, choose_order, count_ngrams
from page.bundle import bundle

ENGINE = bundle(Path(__file__).parent / "engine.js")
COUNT = """([train, V, order, ids, places]) => {
  const counting = new Counting(Uint16Array.from(train), V, order);
  for (const _ of counting.build());
  for (const end of places) counting.read(ids.slice(0, end)); // which is kept
  const { surprisal, lengths } = counting.read(ids);
  return JSON.stringify([[...surprisal], lengths, places.map((t) => {
    const { length, places, next } = counting.longest(ids, t);
    const followed = next.map(({ id, count }) => [id, count]);
    return [[...counting.predict(ids, t)], length, [...places].sort((a, b) => a - b), followed];
  })]);
}"""


@pytest.fixture
def blank(window: Any) -> Any:
    """Return a blank page with the engine."""
    tab, _ = window
    tab.goto("about:blank")
    tab.add_script_tag(content=ENGINE)
    return tab


def distribution(counting: Counting, past: list[int]) -> list[float]:
    past = past[-len(counting.orders) :]
    return [
        float(np.exp(-counting.read(np.array([*past, token]))[0][-1]))
        for token in range(counting.V)
    ]


def check(
    tab: Any, train: list[int], V: int, order: int, ids: list[int], places: list[int]
) -> None:
    surprisal, lengths, seen = json.loads(tab.evaluate(COUNT, [train, V, order, ids, places]))
    counting = count_ngrams(np.array(train), np.array(train), V, order)
    expected, known = counting.read(np.array(ids))
    assert surprisal == pytest.approx(expected.tolist(), abs=1e-6)
    assert lengths == known.tolist()
    for t, (row, length, found, followed) in zip(places, seen, strict=True):
        assert row == pytest.approx(distribution(counting, ids[:t]), abs=1e-6)
        assert sum(row) == pytest.approx(1, abs=1e-5)
        ends = [
            [p for p in range(k, len(train) + 1) if train[p - k : p] == ids[t - k : t]]
            for k in range(min(t, 64) + 1)
        ]
        longest = max(k for k, each in enumerate(ends) if {*each} - {len(train)})
        assert (length, found) == (longest, ends[longest])
        after = Counter(train[p] for p in found if p < len(train))
        assert followed == sorted(map(list, after.items()), key=lambda pair: (-pair[1], pair[0]))


@pytest.mark.parametrize("seed", range(40))
def test_counting_equals_python_on_random_texts(blank: Any, seed: int) -> None:
    """Texts repeat stretches, and often end within one; the text that is read may be unknown."""
    random = Random(seed)
    V, size = random.choice([1, 2, 3, 5, 40, 999]), random.choice([2, 3, 8, 60, 700])
    train = [random.randrange(V) for _ in range(size)]
    for _ in range(random.randrange(9)):
        start = random.randrange(size)
        train += train[start : start + random.randint(1, 99)]
    ids = [random.randrange(V) for _ in range(random.randint(1, 20))]
    start = random.randrange(len(train))
    ids += train[start : start + 80]
    if random.random() < 0.5:
        ids += train[-random.randint(1, 70) :]
    places = [*random.sample(range(len(ids)), min(3, len(ids))), len(ids)]
    check(blank, train, V, min(random.randint(1, 9), len(train)), ids, places)


def test_counting_equals_python_on_the_manual(blank: Any) -> None:
    text = load_text(DataConfig())
    tokens = text.tokens[:90_000].tolist()
    train, V = tokens[:80_000], text.tokenizer.vocab_size
    order = choose_order(np.array(train), V)
    assert order > 5
    check(blank, train, V, order, tokens[85_000:85_300], [0, 1, 77, 200, 300])
