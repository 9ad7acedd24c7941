"""The panel of examples shows the places that Python finds, and opens them."""

import base64
import re
from typing import Any

import numpy as np
import pytest
import torch

from lens.examples import Places, best_distinct, find_places
from page.html import make_html
from tests.page.conftest import Show, altered, settle
from tests.reports import CHARS, Report

SECTION = "#examples-section"
HEADING = ["next", "weight", "loss change"]


@pytest.fixture
def sequences(report: Report) -> torch.Tensor:
    """Return the sequences in the page."""
    packed = report.data["examples"]
    tokens = np.frombuffer(base64.b64decode(packed["tokens"]), np.uint8)
    return torch.from_numpy(tokens.reshape(-1, packed["length"]).astype(np.int64))


def visible(tokens: Any) -> str:
    return "".join(CHARS[i] for i in tokens).translate(str.maketrans(" \n", "␣↵"))


def quoted(tokens: Any, key: int, before: int) -> str:
    """Return the last tokens up to the query, after those around the key if it is further back."""
    first = max(0, len(tokens) - before)
    if key >= first:
        return visible(tokens[first:])
    around = tokens[max(0, key - 2) : min(first, key + 3)]
    return f"{visible(around)} … {visible(tokens[first:])}"


@pytest.mark.parametrize("before", [40, 4])
def test_panel_shows_the_places_of_the_selected_head(
    before: int, show: Show, report: Report, sequences: torch.Tensor
) -> None:
    html = make_html(report.data, report.weights)
    html = altered(html, "const BEFORE = 40", f"const BEFORE = {before}")
    html = altered(html, "const AROUND = 6", "const AROUND = 2")
    tab = show(html, "#head=L1H1&panel=examples")
    both: tuple[Places, Places] = find_places(report.exact[3], sequences, [(1, 1)])[1, 1]
    kinds = "changes the loss most", "attends most to an earlier token"
    for i, (kind, places) in enumerate(zip(kinds, both, strict=True)):
        heading, *rows = tab.locator(f"{SECTION} table >> nth={i} >> tr").all()
        assert heading.locator("th").all_inner_texts() == [f"L1H1 {kind}", *HEADING]
        found = []
        for n in best_distinct(places, sequences, list(CHARS)):
            *read, answer = sequences[n, : int(places.query[n]) + 2]
            key, weight, change = (each[n].item() for each in places[2:])
            found.append([quoted(read, int(key), before), visible([answer])])
            found[-1] += [f"{weight:.3f}", f"{change:+.3f}", visible([read[int(key)]])]
        cells = [
            [*row.locator("td").all_inner_texts(), row.locator("b").inner_text()] for row in rows
        ]
        assert cells == found and len(found) > 5


def test_next_token_is_marked_if_the_head_matters_for_it(show: Show, report: Report) -> None:
    jobs = [job | {"tokens": []} for job in report.data["jobs"]]
    tab = show(make_html(report.data | {"jobs": jobs}, report.weights), "#panel=examples")
    assert tab.locator(f"{SECTION} .matters").count() == 0
    shown = tab.locator(f"{SECTION} td:nth-child(2)").all_inner_texts()
    for job in jobs:
        job["tokens"] = [shown[0]]
    tab = show(make_html(report.data | {"jobs": jobs}, report.weights), "#panel=examples")
    marked = tab.locator(f"{SECTION} .matters").all_inner_texts()
    assert marked == shown.count(shown[0]) * [shown[0]]


def test_clicked_example_is_opened_with_its_pair(show: Show, sequences: torch.Tensor) -> None:
    tab = show(address="#head=L1H1&panel=examples&edit=L0H1%3Dzero&step=1")
    row = tab.locator(f"{SECTION} table >> nth=1 >> tr >> nth=2")
    _, _, weight, _ = row.locator("td").all_inner_texts()
    end, key = row.locator("button").inner_text(), row.locator("b").inner_text()
    row.locator("button").click()
    settle(tab)
    typed = tab.input_value("#typed")
    assert typed.translate(str.maketrans(" \n", "␣↵")) == end
    readout = re.search(r"q (\d+) .* → k \d+ '(.)': weight ([\d.]+)", tab.inner_text("#readout"))
    assert readout and int(readout[1]) == len(typed) - 1 and readout[2] == key
    assert float(readout[3]) == pytest.approx(float(weight), abs=0.002)
    assert tab.is_visible(SECTION) and tab.inner_text("#head-title").startswith("L1H1")
