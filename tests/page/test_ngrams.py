"""N-grams in the page, in a browser, against lens/ngram_model.py and plain searches of the text."""

import json
import re
import zlib
from collections import Counter
from random import Random
from typing import Any

import numpy as np
import pytest
import torch

from configs.config import DataConfig
from data.corpus import load_text
from lens.ngram_model import NgramModel, count_ngrams
from page.html import in_base64, make_html
from tests.page.conftest import Show, wait_for_address
from tests.page.test_page import act, logits_of, read, shown, text_of
from tests.page.test_stale import on_show
from tests.reports import CHARS, TEXT, Report

COLORS = "all => all.map(a => getComputedStyle(a).backgroundColor)"
COUNT = """([train, V, order, ids, places]) => {
  const ngrams = new NgramModel(Uint16Array.from(train), V, order);
  for (const _ of ngrams.build());
  for (const at of places) { // the results before a changed token are kept
    ngrams.read(ids.map((id, t) => (t === at ? (id + 1) % V : id)));
  }
  return JSON.stringify([[...ngrams.read(ids)], places.map((t) => {
    const { length, places, next } = ngrams.longest(ids, t);
    const followed = next.map(({ id, count }) => [id, count]);
    return [[...ngrams.predict(ids, t)], length, [...places].sort((a, b) => a - b), followed];
  })]);
}"""


def distribution(ngrams: NgramModel, past: list[int]) -> list[float]:
    past = past[-len(ngrams.orders) :]
    return [
        float(np.exp(-ngrams.read(np.array([*past, token]))[0][-1])) for token in range(ngrams.V)
    ]


def longest(train: list[int], ids: list[int], t: int) -> tuple[int, list[int]]:
    """Return the length of the longest context of token t that occurs before the end of the
    training text, and the places after it."""
    length, places = 0, [*range(len(train) + 1)]
    for k in range(1, min(t, 64) + 1):
        longer = [place for place in places if place >= k and train[place - k] == ids[t - k]]
        if {*longer} <= {len(train)}:
            break
        length, places = k, longer
    return length, places


def check(
    tab: Any, train: list[int], V: int, order: int, ids: list[int], places: list[int]
) -> None:
    surprisal, seen = json.loads(tab.evaluate(COUNT, [train, V, order, ids, places]))
    ngrams = count_ngrams(np.array(train), V, order)
    expected = ngrams.read(np.array(ids))[0]
    assert surprisal == pytest.approx(expected.tolist(), abs=1e-6)
    for t, (row, length, found, followed) in zip(places, seen, strict=True):
        assert row == pytest.approx(distribution(ngrams, ids[:t]), abs=1e-6)
        assert sum(row) == pytest.approx(1, abs=1e-5)
        assert (length, found) == longest(train, ids, t)
        after = Counter(train[p] for p in found if p < len(train))
        assert followed == sorted(map(list, after.items()), key=lambda pair: (-pair[1], pair[0]))


@pytest.mark.parametrize("seed", range(15))
def test_ngrams_equals_python_on_random_texts(engine: Any, seed: int) -> None:
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
    check(engine, train, V, min(random.randint(1, 9), len(train)), ids, places)


def test_ngrams_equals_python_on_the_manual(engine: Any) -> None:
    text = load_text(DataConfig())
    tokens = text.tokens[:90_000].tolist()
    train, V = tokens[:80_000], text.tokenizer.vocab_size
    check(engine, train, V, 7, tokens[85_000:85_300], [0, 1, 77, 200, 300])


# --- in the page ---------------------------------------------------------------------------------

SEED = "so be it to be or not to be so many to one be it or not to be " * 3
ORDER = 4


def counted_page(report: Report, train: str) -> str:
    """Return the report with a training text."""
    text = {
        "order": ORDER,
        "bytes_per_token": 1,
        "deflated": in_base64(zlib.compress(bytes(numbers_of(train)))),
        "notice": "A notice: https://example.org/license",
    }
    return make_html(report.data | {"text": text}, report.weights)


def numbers_of(text: str) -> list[int]:
    return [CHARS.index(char) for char in text]


def compare(tab: Any) -> None:
    tab.select_option("#color", "ngrams")
    tab.wait_for_selector("#ngrams table")


def assert_counts(tab: Any, text: str, logits_TV: torch.Tensor, t: int) -> None:
    """Check all that the page shows of n-grams, with token t selected."""
    train, ids = numbers_of(SEED), numbers_of(text)
    ngrams = count_ngrams(np.array(train), len(CHARS), ORDER)
    nats = ngrams.read(np.array(ids))[0]
    model_TV = logits_TV.log_softmax(-1)
    own = np.array([-float(model_TV[i, ids[i + 1]]) for i in range(len(ids) - 1)])
    assert read(tab, "#text-note") == pytest.approx([own.mean(), nats[1:].mean()], abs=6e-4)
    for i, color in enumerate(tab.eval_on_selector_all(".token[data-t]", COLORS)[1:]):
        red, _, blue = map(int, re.findall(r"\d+", color))
        assert (blue > red) == (own[i] < nats[i + 1]) or abs(own[i] - nats[i + 1]) < 0.05
    p_V, counted_V = model_TV[t - 1].exp().numpy(), np.array(distribution(ngrams, ids[:t]))
    best = np.argsort(-np.maximum(p_V, counted_V), kind="stable")[:5]
    assert tab.locator("#ngrams code").all_inner_texts() == [*shown(text_of(best))]
    length, ends = longest(train, ids, t)
    followed = Counter(train[end] for end in ends if end < len(train))
    numbers = [[followed[v], counted_V[v], p_V[v]] for v in best]
    found = [float(each) for each in tab.locator("#ngrams .number").all_inner_texts()]
    assert found == pytest.approx(np.array(numbers).ravel().tolist(), abs=6e-4)
    assert re.search(rf"has the (last )?{length} tokens? ", tab.inner_text("#ngrams"))
    for line in tab.locator(".passage").all_inner_texts():
        assert line.strip() in SEED and text[t - length : t] in line


def test_ngrams_follows_text_ablation_and_selected_token(show: Show, report: Report) -> None:
    html, model = counted_page(report, SEED), report.models[3]
    tab = show(html)
    compare(tab)
    assert_counts(tab, TEXT, logits_of(model, TEXT), len(TEXT))
    act(tab, "#text .token >> nth=5")
    assert_counts(tab, TEXT, logits_of(model, TEXT), 5)
    act(tab, ".pick >> nth=1")
    act(tab, "#ablate")
    off = {"layer": 0, "head": 1, "off": "zero"}
    assert_counts(tab, TEXT, logits_of(model, TEXT, off), 5)
    act(tab, "#typed", "or be so it")  # which clears the selection
    assert_counts(tab, "or be so it", logits_of(model, "or be so it", off), 11)
    act(tab, "#slider", "1")
    assert_counts(tab, "or be so it", logits_of(report.models[1], "or be so it", off), 11)
    found, address = on_show(tab), wait_for_address(tab, "step=1")
    assert "color=ngrams" in address
    tab = show(html, address)
    tab.wait_for_selector("#ngrams table")
    assert on_show(tab) == found
    tab.hover("#text .token >> nth=0")
    assert "the model does not predict it" in tab.inner_text("#ngrams")
    act(tab, "#reset")
    assert not tab.is_visible("#ngrams") and tab.input_value("#color") == "surprisal"


def test_continuation_underlines_what_it_copies(show: Show, report: Report) -> None:
    tab = show()
    act(tab, "#temperature", "0.5")
    text = tab.inner_text("#continuation").replace("␣", " ").replace("↵", "\n")
    for length, marked in ((20, range(30, 50)), (19, range(0))):
        tab = show(counted_page(report, SEED + text[30 : 30 + length]))
        act(tab, "#temperature", "0.5")
        assert tab.is_visible("#copied-note")
        classes = tab.eval_on_selector_all("#continuation span", "all => all.map(a => a.className)")
        assert [i for i, name in enumerate(classes) if "copied" in name] == [*marked]


def test_page_without_a_text_does_not_count(show: Show, report: Report) -> None:
    tab = show(address="#color=ngrams")
    assert "model against n-grams" not in tab.inner_text("#color") and not tab.is_visible("#ngrams")


def test_notice_of_a_text_has_its_link(show: Show, report: Report) -> None:
    tab = show(counted_page(report, SEED))
    tab.select_option("#color", "ngrams")
    assert tab.get_attribute("#notice a", "href") == "https://example.org/license"
