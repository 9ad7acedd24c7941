"""The report page in a browser: it matches PyTorch after any interaction, without a network."""

import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import study
from data.tokenizer import BPETokenizer, ByteTokenizer, train_bpe
from lens.capture import capture
from lens.formula import layer_steps
from lens.measure import mean_outputs, weight_by_distance
from lens.tables import visible
from model.generate import Sampling, window_start
from model.gpt import GPT
from page.html import make_html
from tests.conftest import make_run
from tests.page.conftest import Show, altered, settle, wait_for_address
from tests.page.test_engine import OFF, edited, scores_through
from tests.page.test_html import HOSTILE
from tests.reports import CHARS, TEXT, Report, parse_report, rounded
from training.checkpoint import open_run

L, H, B = 3, 2, 12
POINTS = "line => [...line.points].map(({ x, y }) => [x, y])"
HEADS = [f"L{layer}H{head}" for layer in range(L) for head in range(H)]
SELECTED = ".pick[aria-pressed=true] b"
SECTIONS = "[...document.querySelectorAll('#live section, #bar, #more')]"
PLACES = """[...document.querySelectorAll("#live section, .pick, #bar, #more")]
  .map(each => each.getBoundingClientRect())
  .map(({top, bottom, left, right}) => [top, bottom, left, right].map(Math.round))"""
SMALLEST = """() => { // letters in sight, in pixels
  const all = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), sizes = [];
  while (all.nextNode()) {
    const { parentElement: at, data } = all.currentNode;
    if (data.trim() && at.checkVisibility()) sizes.push(parseFloat(getComputedStyle(at).fontSize));
  }
  return Math.min(...sizes);
}"""


@pytest.fixture
def tab(show: Show) -> Any:
    """Return the open page of the report."""
    return show()


def ask(tab: Any, call: str) -> Any:
    return json.loads(tab.evaluate(f"JSON.stringify(glassgpt.{call})"))


def act(tab: Any, selector: str, value: str | None = None) -> None:
    """Click, or fill a field, and wait for the results."""
    tab.click(selector) if value is None else tab.fill(selector, value)
    settle(tab)


def press(tab: Any, *keys: str) -> None:
    for key in keys:
        tab.keyboard.press(key)
    settle(tab)


def select(tab: Any, head: int) -> None:
    tab.locator(".pick").nth(head).click()


def ablate(tab: Any, name: str) -> None:
    """Ablate a head where it is, or undo it: the tile under the pointer has the button."""
    tab.hover(f".tile:has(.cutter[value='{name}'])")
    act(tab, f".cutter[value='{name}']")


def ids_of(text: str) -> torch.Tensor:
    return torch.tensor([[CHARS.index(char) for char in text]])


@torch.no_grad()
def logits_of(model: GPT, text: str, *edits: dict[str, Any]) -> torch.Tensor:
    """Return the logits of the edited model, (T, V)."""
    with edited(model, [*edits], torch.zeros(L, H, 8)):
        logits_TV = model(ids_of(text))[0]
    return logits_TV


def loss_of(logits_TV: torch.Tensor, text: str) -> float:
    return F.cross_entropy(logits_TV[:-1], ids_of(text)[0, 1:]).item()


def text_of(tokens: Any) -> str:
    return "".join(CHARS[int(token)] for token in tokens)


def read(tab: Any, selector: str) -> list[float]:
    """Return the numbers in the text of all matching elements."""
    texts = " ".join(tab.locator(selector).all_inner_texts())
    return [float(found) for found in re.findall(r"[-+]?\d+\.\d+", texts)]


def shown(text: str) -> str:
    return text.replace(" ", "␣").replace("\n", "↵")


def point_at(tab: Any, row: int, column: int, canvas: str = "#map", click: bool = False) -> None:
    names = ("left", "top", "side", "tall")
    left, top, side, tall = (float(tab.get_attribute(canvas, f"data-{name}")) for name in names)
    at = {"x": left + (column + 0.5) * side, "y": top + (row + 0.5) * tall}
    (tab.click if click else tab.hover)(canvas, position=at)


def assert_predicts(tab: Any, *logits: torch.Tensor) -> None:
    """Check the most likely characters and their probabilities, with and without edits. The last is
    the most likely one without edits, if that is no longer among the first."""
    best = logits[0].argsort(descending=True, stable=True)[: 8 - len(logits)]
    best[-1] = before if (before := logits[-1].argmax()) not in best else best[-1]
    assert tab.locator("#next .write").all_inner_texts() == [*shown(text_of(best))]
    expected = torch.stack([logits_V.softmax(0)[best] for logits_V in logits], dim=1)
    assert read(tab, "#next .number") == pytest.approx(expected.flatten().tolist(), abs=6e-4)


def assert_says_change(tab: Any, text: str, *logits: torch.Tensor) -> None:
    """Check the effect of edits: on the prediction after the last token or, if another one changes
    more than twice as much, after that; and on the loss."""
    before_TV, after_TV = (logits_TV.softmax(-1) for logits_TV in logits)
    best_T = before_TV.argmax(-1, keepdim=True)
    was_T, now_T = (p_TV.gather(1, best_T)[:, 0] for p_TV in (before_TV, after_TV))
    by_T = (now_T - was_T).abs()
    t = int(by_T.argmax()) if by_T[-1] < by_T.max() / 2 else len(text) - 1
    where = "comes next" if t == len(text) - 1 else f"after token {t} '{shown(text[t])}'"
    says = tab.inner_text("#change")
    assert says.startswith(f"'{shown(CHARS[int(best_T[t])])}' {where}: ")
    before, after = (loss_of(logits_TV, text) for logits_TV in logits)
    expected = [float(was_T[t]), float(now_T[t]), before, after, after - before]
    assert read(tab, "#change") == pytest.approx(expected, abs=6e-4)


# --- computation ---------------------------------------------------------------------------------


def test_page_reports_its_difference_from_pytorch(tab: Any, report: Report) -> None:
    equality = tab.inner_text("#equality")
    error, allowed, logit = map(float, re.findall(r"-?\d\.\de[-+]\d+", equality))
    assert 0 <= error < allowed / 10 and "matches PyTorch" in equality
    assert logit == pytest.approx(report.data["snapshots"][-1]["rounding"], rel=0.06)


def test_sampling_follows_the_model_probabilities(tab: Any, report: Report) -> None:
    options = "{seed, temperature: 0.2, topK: 5}"
    call = f"Array.from({{length: 2000}}, (_, seed) => glassgpt.generate('to be', 1, {options}))"
    drawn = tab.evaluate(call)
    logits_BV = logits_of(report.models[3], "to be")[-1:]
    expected = Sampling(temperature=0.2, top_k=5).probabilities(logits_BV)[0].tolist()
    assert [drawn.count(char) / 2000 for char in CHARS] == pytest.approx(expected, abs=0.04)


def assert_disabled(tab: Any, reason: str) -> None:
    assert f"does not match PyTorch: {reason}" in tab.inner_text("#equality")
    assert not tab.is_visible("#live") and tab.is_visible("#equality")


def test_page_that_differs_from_pytorch_is_disabled(show: Show, report: Report) -> None:
    weight = bytearray(report.weights[0])
    weight[-3] ^= 0x40  # in the output head
    tab = show(make_html(report.data, [bytes(weight), *report.weights[1:]]))
    assert_disabled(tab, "a logit differs by")
    act(tab, "#slider", "0")  # the other snapshots are intact
    assert tab.is_visible("#live") and tab.get_attribute("#equality", "class") == "quiet"
    for right, wrong in (
        ("sameAtStart(this.tokens, tokens)", "sameAtStart(this.tokens, tokens) + 1"),
        ("const { rows, logits:", "logits[5] = NaN;\n  const { rows, logits:"),
    ):
        html = altered(make_html(report.data, report.weights), right, wrong)
        assert_disabled(show(html), "a logit differs by")
    data = json.loads(json.dumps(report.data))
    data["run"]["config"]["model"]["activation"] = "silu"
    assert_disabled(show(make_html(data, report.weights)), "a logit differs by")


# --- interaction ---------------------------------------------------------------------------------


def test_unseen_tokens_are_skipped_and_the_last_view_stays(tab: Any, report: Report) -> None:
    act(tab, "#typed", "abcdefgh")
    act(tab, "#typed", "abcdexgh")
    assert tab.locator("#text .token.kept").count() == 5
    for text, seen in (("ab\u00e9c", "ab\u00e9c"), ("\u00e9", "\u00e9abc"), ("", "abc")):
        act(tab, "#typed", text)
        assert tab.locator("#text .token").all_inner_texts() == [*seen]
        assert ("never saw '\u00e9'" in tab.inner_text("#text-state")) == bool(text)
        assert_predicts(tab, logits_of(report.models[3], "abc")[-1])
    name = tab.inner_text(".write >> nth=1")
    act(tab, ".write >> nth=1")  # continues the text on show
    assert shown(tab.input_value("#typed")) == "abc" + name
    act(tab, "#typed", "a\u00e9bc")
    act(tab, "#text .token >> nth=2")
    act(tab, ".write >> nth=0")
    assert tab.input_value("#typed")[:3] == "a\u00e9b"
    text = "a long text of more than so many tokens"
    act(tab, "#typed", text)
    assert tab.locator("#text [data-t]").count() == 9  # the window moves by half of block_size
    assert tab.locator("#text .before").all_inner_texts() == [*shown(text[:-9])]
    assert_predicts(tab, logits_of(report.models[3], "ny tokens")[-1])


@torch.no_grad()
def test_edited_model_of_an_earlier_step_matches_pytorch(tab: Any, report: Report) -> None:
    model, text, data = report.models[1], "and so it be", report.data["snapshots"][1]
    act(tab, "#typed", text)
    act(tab, "#slider", "1")
    act(tab, "#temperature", "0")
    select(tab, HEADS.index("L1H0"))
    act(tab, "#ablate")
    tab.select_option("#instead", "mean")
    act(tab, ".cutter[value='L0.mlp']")
    edits = [{"layer": 1, "head": 0, "off": "mean"}, {"layer": 0, "off": "mlp"}]
    before_TV = logits_of(model, text)
    with edited(model, edits, mean_outputs(report.exact[1], report.sequences_BT)):
        depths = capture(model, ids_of(text)).residual
    lens_TV = [model.unembed(x_BTC)[0] for x_BTC in depths]
    assert_predicts(tab, lens_TV[-1][-1], before_TV[-1])
    assert_says_change(tab, text, before_TV, lens_TV[-1])
    assert tab.text_content("#continuation")[0] == tab.inner_text(".write >> nth=0")
    assert "step 1 ·" in tab.inner_text("#moment")
    assert read(tab, "#moment") == pytest.approx([data["lens_loss"][-1]], abs=6e-4)
    act(tab, ".bar-button >> nth=2")
    *parts, logit = read(tab, "#contributions table")
    assert len(parts) == (H + 1) * L + 1 and parts[H] == 0  # no biases; layer 0's MLP is ablated
    assert sum(parts) == pytest.approx(logit, abs=0.06)
    assert logit == pytest.approx(float(lens_TV[-1][-1].sort().values[-3]), abs=6e-3)

    act(tab, "#show-lens")
    best = text_of(torch.cat([logits_TV.argmax(-1) for logits_TV in lens_TV]))
    assert tab.locator("#lens tbody td").all_inner_texts() == [*shown(best)]
    tab.locator("#lens tbody tr").nth(2).locator("td").nth(4).hover()
    p_V = lens_TV[2][4].softmax(-1)
    expected = [*p_V.topk(3).values.tolist(), float(p_V[CHARS.index(text[5])])]
    assert read(tab, "#lens-readout") == pytest.approx(expected, abs=6e-4)
    act(tab, "#undo")
    assert_predicts(tab, before_TV[-1])


def test_patching_matches_pytorch(tab: Any, report: Report) -> None:
    """Patch from a text with another prediction, then from one with the same."""
    model, before_V = report.models[3], logits_of(report.models[3], TEXT)[-1]
    a = int(before_V.argmax())
    texts = [TEXT[:2] + a + TEXT[3:-1] + z for a in "xyz" for z in CHARS]
    best = {text: int(logits_of(model, text)[-1].argmax()) for text in texts}
    act(tab, "#show-patch")
    for is_same, by_head, cells in ((False, False, [(1, 9), (2, 11)]), (True, True, [(4, 11)])):
        other = next(text for text in texts if (best[text] == a) == is_same)
        act(tab, "#other", other)
        tab.set_checked("#by-head", by_head)
        tab.wait_for_selector("body[data-filled]")
        seen, other_V = capture(model, ids_of(other)), logits_of(model, other)[-1]
        rises_V = other_V - before_V
        rises_V[a] = -torch.inf
        b = int(rises_V.argmax()) if is_same else best[other]
        low, high = (float(end_V[b] - end_V[a]) for end_V in (before_V, other_V))
        assert read(tab, "#patch-state")[-2:] == pytest.approx([low, high], abs=6e-3)
        for r, t in cells:
            patch: dict[str, Any] = {"layer": r // H, "head": r % H}
            row_D = seen.layers[r // H].z_BHTD[0, r % H, t]
            if not by_head:
                patch, row_D = {"layer": r}, seen.residual[r][0, t]
            patch |= {"position": t, "row": row_D.tolist()}
            end_V = logits_of(model, TEXT, patch)[-1]
            point_at(tab, r, t, "#patches")
            recovered = (float(end_V[b] - end_V[a]) - low) / (high - low)
            assert read(tab, "#patch-readout")[0] == pytest.approx(recovered, abs=2e-3)
    point_at(tab, r, t, "#patches", click=True)
    settle(tab)
    assert_predicts(tab, end_V, before_V)


def boxes(tab: Any) -> list[Any]:
    return [tab.locator(place).bounding_box() for place in ("#map", "#key-by", "#hide-key")]


@torch.no_grad()
@pytest.mark.parametrize("hidden", [False, True], ids=["moved", "hidden"])
def test_key_moved_or_hidden_matches_pytorch(tab: Any, report: Report, hidden: bool) -> None:
    """In all heads, in all others, or in one; the address keeps it."""
    model, before_V = report.models[3], logits_of(report.models[3], TEXT)[-1]
    for head, key, by, scope in ((0, 6, 5, 2), (2, 7, -11, 1), (5, 11, 1, 0)):
        select(tab, head)
        act(tab, f"#text .token >> nth={key}")
        tab.select_option("#key-heads", index=scope)
        shown_at = boxes(tab)
        assert tab.inner_text("#key-moved") == "0"
        for turn in (hidden, not hidden, hidden):  # the last edit of a key counts
            act(tab, "#hide-key") if turn else act(tab, "#key-by", str(by))
        assert boxes(tab) == shown_at
        press(tab, "Escape")
        change = {"hide": key} if hidden else {"position": key, "by": by}
        heads = [i for i in range(L * H) if scope == 2 or (i == head) == (scope == 0)]
        edits = [{"layer": i // H, "head": i % H, **change} for i in heads]
        expected_TV = logits_of(model, TEXT, *edits)
        assert_predicts(tab, expected_TV[-1], before_V)
        says = f"The key of token {key} '{shown(TEXT[key])}' is "
        says += "hidden from " if hidden else f"moved by {by} in "
        says += [HEADS[head], f"all heads but {HEADS[head]}", "all heads"][scope]
        assert tab.inner_text("#edit-list") == f"{says}. Undo"
        assert_says_change(tab, TEXT, logits_of(model, TEXT), expected_TV)
        act(tab, "#edit-list button")
    act(tab, "#text .token >> nth=3")
    act(tab, "#hide-key") if hidden else act(tab, "#key-by", "-5")
    assert_predicts(tab, *(logits_of(model, TEXT)[3],) * 2)  # of the selected token
    word = "hide%403%2FL2H1" if hidden else "move%403%2FL2H1%3D-5"
    wait_for_address(tab, word)
    act(tab, "#typed", TEXT + "s")  # beyond the context
    assert "3 (not in this text)" in tab.inner_text("#edit-list") and tab.is_disabled("#key-by")


# In one call, because a pointer over a page that scrolls meanwhile selects another prediction.
CHOOSE_SECOND = """() => {
  const button = document.querySelectorAll(".bar-button")[1];
  button.focus({ preventScroll: true });
  button.click();
  return document.querySelectorAll(".write")[1].innerText;
}"""


def assert_drawn(tab: Any, chart: str, expected_N: torch.Tensor) -> None:
    """Check the heights of a line from its lowest to its highest point."""
    y_N = -np.array(tab.eval_on_selector(f"{chart} .chosen", POINTS))[:, 1]
    heights_N = (expected_N - expected_N.min()) / (expected_N.max() - expected_N.min())
    assert (y_N - y_N.min()) / np.ptp(y_N) == pytest.approx(heights_N.numpy(), abs=0.01)


@torch.no_grad()
def test_chosen_token_is_followed_through_the_text(tab: Any, report: Report) -> None:
    """Its probability after each token, also with an edit; the weights on its last occurrence."""
    model, text = report.models[3], "to be to be"
    act(tab, "#typed", text)
    tab.select_option("#color", "probability")
    assert tab.input_value("#chosen") == "↵" and "'↵' is not in this text" in tab.inner_text(
        "#distances"
    )
    tab.fill("#chosen", "t")
    for head, edits in ((3, []), (4, [{"layer": 2, "head": 0, "off": "zero"}])):
        select(tab, head)
        if edits:
            act(tab, "#ablate")
        token = CHARS.index("t")
        p_T = logits_of(model, text, *edits).softmax(-1)[:, token]
        tab.hover(f"#text .token >> nth={head}")
        assert read(tab, "#text-note") == [pytest.approx(float(p_T[head]), abs=6e-4)]
        assert_drawn(tab, "#chances", p_T)
        assert tab.locator("#chances polyline").count() == 1 + len(edits)
        weight_T, count_T = weight_by_distance(model, ids_of(text), token)
        weight_T, known = weight_T[head // H, head % H], (count_T > 0).numpy()
        caption = f"Weight of {HEADS[head]} on the last 't', by distance."
        assert tab.inner_text("#distances figcaption") == caption
        assert_drawn(tab, "#distances", weight_T[known])
    tab.fill("#chosen", "never")
    assert tab.get_attribute("#chosen", "aria-invalid") == "true"


def test_table_through_an_earlier_head_matches_pytorch(tab: Any, report: Report) -> None:
    """At first through the head that attends most to the previous token."""
    select(tab, 2 * H)
    act(tab, "#show-alone")
    assert not tab.is_visible("#alone-curve")
    previous = report.data["snapshots"][-1]["scores"]["previous_token"][: 2 * H]
    writer = "#alone-section select"
    assert tab.input_value(writer) == str(np.argmax(previous))
    tab.check("#alone-all")
    point_at(tab, 3, 5, "#alone-scores", click=True)
    tab.select_option(writer, str(H))  # which is not earlier than the next head
    scores = scores_through(report.models[3], (1, 0), (2, 0))
    assert read(tab, "#alone-readout")[0] == pytest.approx(float(scores[3, 5]), abs=6e-4)
    select(tab, H)
    settle(tab)
    assert tab.input_value(writer) == str(np.argmax(previous[:H]))


def test_picture_of_the_network_opens_and_cuts_parts(tab: Any, show: Show, report: Report) -> None:
    best = logits_of(report.models[3], TEXT)[-1].softmax(0)
    says = f"'{shown(CHARS[int(best.argmax())])}' {best.max():.2f}"
    assert tab.inner_text(".end >> nth=1").endswith(says)
    act(tab, ".end >> nth=1")
    contribution = read(tab, "#contributions td:last-child")[1]
    act(tab, ".mlp .opens >> nth=1")
    assert read(tab, "#mlp-note") == [pytest.approx(contribution, abs=0.01)]
    assert tab.locator("#neurons tr").count() == 13
    layers = (f".cutter[value='L{layer}.attn']" for layer in (0, 1))
    for cuts, selector in enumerate(("#ablate-mlp", *layers), 1):
        act(tab, selector)
        assert tab.locator("#wires .cross").count() == cuts
    assert tab.locator(".pick.off").count() == 2 * H
    tab = show(address=wait_for_address(tab, "L1.attn"))
    assert tab.is_visible("#neurons") and tab.locator("#wires .cross").count() == 3
    select(tab, 1)
    act(tab, ".stream")
    assert tab.is_visible("#map") and tab.is_visible("#lens")


def test_each_head_says_what_it_does(show: Show, report: Report) -> None:
    """Under its tile in a line and, if it is selected, in words; with More, with its evidence."""
    words = ("line", "matters", "sentence")
    jobs: list[dict[str, Any]] = [
        {word: f"{word} of {head} <b>" for word in words} | {"reads": ["a", head]} for head in HEADS
    ]
    jobs[4]["reads"] = []
    tab = show(make_html(report.data | {"jobs": jobs}, report.weights), "#head=L1H1", calm=True)
    assert tab.locator(".tile .job").all_inner_texts() == [job["line"] for job in jobs]
    says = "Matters for: matters of L1H1 <b> · attends to: a, and L1H1"
    assert tab.inner_text("#head-job") == says
    assert not tab.is_visible("#head-evidence")
    act(tab, "#all")
    assert tab.inner_text("#head-evidence") == "sentence of L1H1 <b> Measured at step 3."
    select(tab, 4)
    assert tab.inner_text("#head-job") == "Matters for: matters of L2H0 <b>"
    assert "L2H0" in tab.inner_text("#head-evidence")
    act(tab, "#slider", "1")
    assert tab.inner_text("#head-job").endswith("L2H0 <b> · measured at step 3")
    assert {*report.data["jobs"][0]} == {*words, "reads", "tokens"} and len(
        report.data["jobs"]
    ) == 6


def test_each_head_is_ablated_where_it_is(tab: Any, report: Report) -> None:
    """And all heads of a layer by a button that says so. The selected head stays. Only its tile,
    the one under the pointer and those of ablated heads have the button."""
    model, before_TV = report.models[3], logits_of(report.models[3], TEXT)
    selected = tab.inner_text(SELECTED)
    cutters = tab.locator(".tile .cutter:visible")
    for head, name in enumerate(HEADS):
        tab.evaluate("document.activeElement.blur()")
        tab.hover(f".tile:has(.cutter[value='{name}'])")
        assert cutters.count() == (1 if name == selected else 2)
        pick, button = (
            tab.eval_on_selector(each, "each => each.getBoundingClientRect().toJSON()")
            for each in (f".pick:has(+ .cutter[value='{name}'])", f".cutter[value='{name}']")
        )
        assert all(pick[side] + 2 <= button[side] for side in ("left", "top"))  # in the frame
        assert all(pick[side] - 2 >= button[side] for side in ("right", "bottom"))
        ablate(tab, name)
        off = {"layer": head // H, "head": head % H, "off": "zero"}
        assert_says_change(tab, TEXT, before_TV, logits_of(model, TEXT, off))
        tab.mouse.move(0, 0)
        tab.evaluate("document.activeElement.blur()")
        assert cutters.all_inner_texts().count("undo") == 1
        assert tab.inner_text(SELECTED) == selected
        ablate(tab, name)
        assert not tab.is_visible("#edits")
    tab.mouse.move(0, 0)
    tab.focus(".pick[tabindex='0']")
    press(tab, "Tab", "Enter")
    assert tab.inner_text("#edit-list").startswith(f"{selected} is ablated")
    press(tab, "u")
    layer = ".cutter[value='L1.attn']"
    assert "all heads" in tab.inner_text(layer)
    act(tab, layer)
    assert [tab.is_disabled(f".cutter[value='{name}']") for name in HEADS] == [
        name.startswith("L1") for name in HEADS
    ]


def test_ablating_a_circuit_node_matches_pytorch(tab: Any, report: Report) -> None:
    model = report.models[3]
    act(tab, "#show-circuit")
    assert tab.locator(".node").count() == 20
    tab.select_option("#circuit-section select >> nth=1", "100")
    a, b = logits_of(model, TEXT)[-1].topk(2).indices
    goal = tab.locator(".circuit .goal")
    assert goal.text_content() == " \u2212 ".join(f"'{shown(CHARS[i])}'" for i in (a, b))
    for kind, mark, row in (("head", "H", {"row": [0.0] * 8}), ("neuron", "neuron", {})):
        node = tab.locator(f".node[aria-label*={mark}]").first
        layer, index, t = map(int, re.findall(r"\d+", node.get_attribute("aria-label"))[:3])
        node.press("Enter")
        zeros = {"layer": layer, kind: index, "position": t} | row
        after_V = logits_of(model, TEXT, zeros)[-1]
        difference = float(after_V[a] - after_V[b])
        assert read(tab, "#circuit-section output")[-1] == pytest.approx(difference, abs=6e-3)


def test_back_button_restores_the_state(show: Show) -> None:
    """test_stale.py tests addresses."""
    tab = show(calm=True)
    act(tab, "#typed", "so be it")
    wait_for_address(tab, "so+be")
    act(tab, "#ablate")
    wait_for_address(tab, "edit=")
    typed = "value => document.querySelector('#typed').value === value"
    tab.go_back()  # undoes the edit; the next one, the text
    tab.wait_for_function(typed, arg="so be it")
    assert not settle(tab).is_visible("#edits")
    tab.go_back()
    tab.wait_for_function(typed, arg=TEXT)


def test_continuation_is_written_as_shown(tab: Any) -> None:
    for temperature, top_k in (("3.5", "3"), ("0.2", "")):
        act(tab, "#top-k", top_k)
        act(tab, "#temperature", temperature)
        options = f"{{temperature: {temperature}, topK: {top_k or 0}}}"
        ahead = ask(tab, f"generate('{TEXT}', 80, {options})")
        assert tab.inner_text("#continuation") == shown(ahead)
    act(tab, "#write-one")
    assert tab.input_value("#typed") == TEXT + ahead[0]
    assert tab.inner_text("#continuation")[:79] == shown(ahead[1:])  # the shown text is kept
    before = tab.inner_text("#continuation")
    act(tab, "#another")
    assert tab.inner_text("#continuation") != before
    tab.focus("#typed")
    press(tab, "Control+z", "Control+z")  # also undoes what the model wrote
    assert tab.input_value("#typed") == TEXT
    act(tab, "#typed", "to be")
    act(tab, "#text .token >> nth=2")
    name = tab.inner_text(".write >> nth=1")
    act(tab, ".write >> nth=1")
    assert shown(tab.input_value("#typed")) == "to␣" + name


@torch.no_grad()
def test_edit_of_a_position_stays_behind_when_the_window_moves(tab: Any, report: Report) -> None:
    act(tab, "#temperature", "0")
    act(tab, "#text .token >> nth=6")
    tab.select_option("#key-heads", index=2)
    act(tab, "#hide-key")
    text = TEXT  # as long as the context
    for _ in range(9):
        start = window_start(len(text) - 1, B)
        edits = [] if start else [{"hide": 6}]
        text += text_of([logits_of(report.models[3], text[start:], *edits)[-1].argmax()])
    assert tab.inner_text("#continuation")[:9] == shown(text[B:])


def test_selection_lasts_until_escape_and_in_the_address(tab: Any) -> None:
    """A second click on it, of a token or of a cell, does not clear it."""

    def selected() -> list[str]:
        tab.mouse.move(0, 0)
        return tab.locator("#text .token.here, #text .token.pinned").all_inner_texts()

    select(tab, 4)
    for _ in range(2):
        point_at(tab, 10, 4, click=True)
        assert selected() == ["e", "o"]
    wait_for_address(tab, "at=10.4")
    tab.reload()
    assert settle(tab) and selected() == ["e", "o"]
    for _ in range(2):
        tab.click("#text .token >> nth=3")
        assert selected() == ["b"]
    press(tab, "Escape")
    assert selected() == ["t"]
    tab.wait_for_function("() => !location.hash.includes('at=')")


def test_arrows_in_a_map_reach_later_keys_only_before_the_mask(tab: Any) -> None:
    for stage, reached in (("weights", 4), ("scores", 5)):
        act(tab, f"[data-stage={stage}]")
        point_at(tab, 4, 3, click=True)
        tab.focus("#map")
        press(tab, "ArrowRight", "ArrowRight")
        assert f"k {reached} " in tab.inner_text("#readout")
    press(tab, "ArrowUp")
    assert "q 3 " in tab.inner_text("#readout") and "k 5 " in tab.inner_text("#readout")
    act(tab, "[data-stage=weights]")
    tab.focus("#map")
    press(tab, "ArrowUp")
    assert "q 2 " in tab.inner_text("#readout") and "k 2 " in tab.inner_text("#readout")


def test_address_of_what_the_page_lacks_is_named(show: Show) -> None:
    strange = "edit=L9H0%3Dzero&edit=patch@99/L0&edit=hide@1/L0&edit=x&step=77&head=L9H9"
    strange += "&edit=move@1/L0H0%3D12&edit=move@1/L0%3D2&edit=hide@1/!L1&color=x&token=99"
    strange += "&edit=move@1/L0H0%3D0&edit=patch@1/L0%3D3"
    strange += "&at=12&edit=L0H2%3Dzero&edit=L3.mlp&edit=hide@12"  # the first that the model lacks
    tab = show(address=f"#text=%ED%B2%80&{strange}")
    assert not tab.is_visible("#trouble") and not tab.is_visible("#edits")
    lacking = [f"{name}={word}" for name, word in parse_qsl(strange) if name != "at"]  # of the text
    assert ", ".join(lacking) in tab.inner_text("#text-state")
    press(tab, "r")
    assert "address" not in tab.inner_text("#text-state")
    show(address="#text=so+b&other=to+b&edit=patch%405/L0")  # the text has no position 5
    assert "not in this text" in tab.inner_text("#edit-list") and read(tab, "#change")[-1] == 0


def test_page_cut_in_a_download_says_so(show: Show, report: Report) -> None:
    html = make_html(report.data, report.weights)
    tab = show(html[: html.rindex("</script>") - 9])
    assert tab.is_visible("#live") and "file is incomplete" in tab.inner_text("#trouble")
    at_once = altered(html, "appear 0s 4s", "appear 0s 0s")
    with pytest.raises(Exception, match="Timeout"):
        show(at_once[: at_once.rindex("const module3")], timeout=100)
    tab.wait_for_selector("#incomplete")
    assert not tab.locator("#panels section:visible, .extra:visible").count()  # calm from the start


# --- display -------------------------------------------------------------------------------------


CONTROLS = """() => [...document.querySelectorAll(
    "button, select, input, textarea, summary, canvas")]
  .filter((each) => each.checkVisibility() && each.tabIndex > -2 && !each.disabled)
  .filter((each) => !each.matches("canvas:not([tabindex])")).length"""


def assert_calm(tab: Any) -> None:
    """Check that few controls are on show until More is pressed, and that the network is near."""
    few = tab.evaluate(CONTROLS)
    assert few <= 25
    stops = list[str]()
    while "pick" not in stops and len(stops) < 10:
        tab.keyboard.press("Tab")
        stops.append(tab.evaluate("document.activeElement.id || document.activeElement.className"))
    assert stops[-1] == "pick", stops
    act(tab, "#all")
    assert tab.evaluate(CONTROLS) > few + 40
    hidden = "[...document.querySelectorAll('.extra')].filter((each) => !each.checkVisibility())"
    assert set(tab.evaluate(f"{hidden}.map((each) => each.id)")) == set()
    wait_for_address(tab, "more=true")
    act(tab, "#all")
    assert tab.evaluate(CONTROLS) == few


# Elements whose text does not fit, by either axis. What scrolls on purpose says so by its class.
CUT = """() => [...document.querySelectorAll("body *")].filter((each) => {
  const { display, overflowX } = getComputedStyle(each);
  if (display === "inline" || !each.clientWidth || !each.checkVisibility()) return false;
  if (each.closest("svg, select, input, textarea, table, #about")) return false;
  if (each.closest(".scroll:not(:has(> #network))")) return false;
  if (each.matches("#bar > .controls, #ruler, #network")) return false;
  const isHigh = each.matches(
    "#told, #step, #edits, #change, #readout, #key-name, #line-end, .job, #head-job");
  return each.scrollWidth > each.clientWidth + 1 ||
    isHigh && each.clientHeight && each.scrollHeight > each.clientHeight + 1;
}).map((each) => `${each.id || each.className}: ${each.textContent.trim().slice(0, 50)}`)"""
SIZES = {"screen": (1280, 720), "notebook": (1000, 700), "phone": (390, 844)}
LONGEST = "first characters of words ← the last open bracket or quote"
EDITS = "edit=L1H0%3Dzero&edit=move%403/L2H1%3D5"
STATES = [
    "guide=1",
    f"guide=2&at=9.4&{EDITS}",
    "guide=3&at=9.4",
    f"guide=4&at=9.4&more=true&{EDITS}",
    f"color=probability&token=4&at=3&{EDITS}&more=true",
    "mlp=1&more=true&logit=3",
    *(f"more=true&panel={panel}" for panel in ("lens", "patch", "scores", "alone", "circuit")),
]


@pytest.mark.parametrize("size", SIZES)
def test_no_text_is_cut_and_nothing_moves(show: Show, report: Report, size: str) -> None:
    """On a laptop, which has as much room as 1920 x 1080 at 150%, in a notebook, on a phone. On a
    laptop, the map is in sight below what the head does."""
    longest = {"line": LONGEST, "matters": LONGEST, "reads": [], "sentence": 9 * LONGEST}
    jobs = [longest for _ in HEADS]
    tab = show(make_html(report.data | {"jobs": jobs}, report.weights), calm=True)
    tab.set_viewport_size(dict(zip(("width", "height"), SIZES[size], strict=True)))
    if size == "screen":
        settle(tab).evaluate("new Promise(requestAnimationFrame)")
        legend = tab.locator(".legend[data-shows=stage]").bounding_box()
        assert tab.is_visible(".job") and legend["y"] + legend["height"] < SIZES[size][1]
    for state in STATES:
        tab.evaluate("(state) => { location.hash = state; }", state)
        tab.evaluate("new Promise(requestAnimationFrame)")
        settle(tab).evaluate("new Promise(requestAnimationFrame)")
        assert tab.evaluate(CUT) == [], state
        assert tab.evaluate("document.scrollingElement.scrollWidth <= innerWidth"), state
        if "panel" in state or "edit" in state or "mlp" in state:
            continue
        places = tab.evaluate(PLACES)
        tab.eval_on_selector(
            ".pick[tabindex='0'] + .cutter", "each => each.click()"
        )  # no scrolling
        settle(tab)
        assert tab.evaluate(CUT) == [] and tab.evaluate(PLACES) == places, state
        press(tab, "u")


@torch.no_grad()
def test_end_of_a_line_is_a_headline(show: Show, report: Report) -> None:
    """The first column of the last line after which a newline is likely, without edits and with
    them. The text has the full width, a row for each line, and does not scroll."""
    model, newline, begin = report.models[1], CHARS.index("\n"), 3

    def says(logits_TV: torch.Tensor) -> str:
        p_T = logits_TV.softmax(-1)[begin:, newline]
        likely = (p_T >= 0.3).nonzero().flatten().tolist()
        return f"after column {likely[0] + 1}" if likely else "nowhere"

    letters = np.random.default_rng(0).choice([*CHARS[1:]], (500, B - begin))
    texts = (f"to\n{''.join(line)}" for line in letters)
    text = next(each for each in texts if "column" in says(logits_of(model, each)))
    tab = show(address=f"#{urlencode({'text': text, 'step': 1, 'color': 'probability'})}")
    found = {says(logits_of(model, text))}
    assert tab.inner_text("#line-end").endswith(f" {says(logits_of(model, text))}.")
    for name in HEADS:
        ablate(tab, name)
        off = {"layer": int(name[1]), "head": int(name[3]), "off": "zero"}
        before, after = (says(logits_of(model, text, *edits)) for edits in ([], [off]))
        expected = f" {before} without the edits, and {after} with them."
        assert tab.inner_text("#line-end").endswith(expected)
        found.add(after)
        ablate(tab, name)
    assert len(found) > 1
    act(tab, "#typed", "a" * 11 + "\n")
    assert tab.locator("#ruler span").all_inner_texts() == ["10", "20"]
    tenth = tab.locator("#text .token >> nth=9").bounding_box()
    assert tab.locator("#ruler span >> nth=0").bounding_box()["x"] == pytest.approx(
        tenth["x"], abs=1
    )
    wide = "document.querySelector('#text-section').clientWidth > innerWidth - 60"
    assert tab.evaluate(wide)
    assert tab.eval_on_selector("#text", "each => each.scrollHeight <= each.clientHeight")


def test_page_is_calm_until_more_is_pressed(show: Show) -> None:
    tab = show(calm=True)
    assert_calm(tab)
    for address, control in (
        ("color=probability", "#color"),
        ("panel=lens", "#show-lens"),
        ("edit=hide@1", "#key-by"),
        ("stage=scores", "[data-stage]"),
        ("edit=L0.attn", ".cutter[value='L0.attn']"),
        ("score=first_token", "#measure"),
        ("edit=L0H0%3Dmean", "#instead"),
    ):  # what is in use is on show
        assert not show(calm=True).is_visible(control)
        assert show(address=f"#{address}", calm=True).is_visible(control)


@torch.no_grad()
def test_hovering_shows_the_numbers_of_pytorch(tab: Any, report: Report) -> None:
    model, logits_TV = report.models[3], logits_of(report.models[3], TEXT)
    assert f"≥ {np.log(len(CHARS)):.1f}" in tab.inner_text("[data-shows=text]")
    seen = capture(model, ids_of(TEXT))
    layer = seen.layers[1]
    scores_TS = layer.q_BHTD[0, 1] @ layer.k_BHSD[0, 1].T / 8**0.5
    weights_TS = layer.weights_BHTS[0, 1]
    select(tab, 3)
    point_at(tab, 10, 4)
    assert "q 10 'o' → k 4 'e'" in tab.inner_text("#readout")
    cell = [float(weights_TS[10, 4]), float(scores_TS[10, 4])]
    assert read(tab, "#readout") == pytest.approx(cell, abs=6e-4)
    assert_predicts(tab, logits_TV[10])
    point_at(tab, 3, 8)
    assert "masked" in tab.inner_text("#readout") and not read(tab, "#readout")
    tab.hover("#text .token >> nth=9")
    p_TV = logits_TV.softmax(-1)
    own, after = (float(p_TV[t - 1, CHARS.index(TEXT[t])]) for t in (9, 10))
    assert read(tab, "#next p") == pytest.approx([after, -np.log(own)], abs=6e-4)
    assert tab.locator("#text .token.masked").all_inner_texts() == [*TEXT[10:]]


@torch.no_grad()
def assert_meets(tab: Any, model: GPT, head: int, q: int, k: int) -> None:
    """Check each step from a query and a key to a weight, and the value, against `trace`."""
    layer, h = capture(model, ids_of(TEXT)).layers[head // H], head % H
    traced = layer_steps(layer.attn, layer.x_BTC)
    steps = {name: step.value[0, h] for name, step in traced.items() if step.value.dim() == 4}

    def of_channels() -> np.ndarray:
        says = tab.locator("#step g").evaluate_all("all => all.map((each) => each.dataset.says)")
        return np.array([re.findall(r"-?\d+\.\d+", each) for each in says], float)

    select(tab, head)
    point_at(tab, q, k, click=True)
    press(tab, "3")
    for name, is_before in (("rotated", False), ("normalized", True)):
        tab.set_checked("#step input", is_before)
        q_D, k_D = steps[f"Q {name}"][q], steps[f"K {name}"][k]
        expected = torch.stack([q_D, k_D, q_D * k_D], 1)
        assert of_channels() == pytest.approx(expected.numpy(), abs=6e-4)
        tab.hover("#step g >> nth=5")
        assert read(tab, "#term") == pytest.approx(expected[5].tolist(), abs=6e-4)
        assert read(tab, ".channels span")[-1] == pytest.approx(float(q_D @ k_D), abs=6e-3)
    assert read(tab, "#step label")[0] == pytest.approx(float(steps["products"][q, k]), abs=6e-3)
    tab.uncheck("#step input")
    is_masked = bool(steps["masked"][q, k].isinf())
    exp_S = (steps["masked"][q] - steps["masked"][q].max()).exp()
    numbers = [steps["scores"][q, k], exp_S[k], exp_S.sum(), steps["weights A"][q, k]]
    assert read(tab, "#worked .number") == pytest.approx([*map(float, numbers)], abs=6e-4)
    assert ("\u2212∞" in tab.inner_text("#worked")) == is_masked
    if k > q:
        return
    press(tab, "4")
    assert of_channels()[:, 0] == pytest.approx(steps["V by head"][k].numpy(), abs=6e-4)


def test_query_meets_key_as_in_trace(tab: Any, report: Report) -> None:
    assert_meets(tab, report.models[3], 3, q=10, k=4)
    assert_meets(tab, report.models[3], 3, q=4, k=10)


@torch.no_grad()
def test_key_that_can_tell_what_came_before_names_the_head(tab: Any, report: Report) -> None:
    """An earlier head that attends from the key to the token before it, unless it is ablated."""
    tab.fill("#slider", "1")
    act(tab, "#typed", "to be to be")
    seen = capture(report.models[1], ids_of("to be to be"))
    weights_HTS = torch.cat([layer.weights_BHTS[0] for layer in seen.layers[:2]])
    select(tab, 5)
    press(tab, "2")
    named: dict[int, int] = {}
    for k in range(1, 11):
        weight_H = weights_HTS[:, k, k - 1]
        best = int(weight_H.argmax())
        point_at(tab, 10, k)
        says = f"{HEADS[best]} attends from token {k} " in tab.inner_text("#step")
        assert says == bool(weight_H[best] >= max(0.3, 2 / (k + 1)))  # twice uniform attention
        named |= {k: best} if says else {}
    assert len(named) < 10
    k, best = named.popitem()
    select(tab, best)
    press(tab, "x")
    select(tab, 5)
    point_at(tab, 10, k)
    assert f"{HEADS[best]} attends from token" not in tab.inner_text("#step")


@torch.no_grad()
def test_guided_steps_show_measured_values(tab: Any, report: Report) -> None:
    model, text = report.models[3], "to be to be"
    act(tab, "#typed", text)
    select(tab, 5)
    act(tab, "#steps button >> nth=3")
    point_at(tab, 9, 4)
    seen, weight = capture(model, ids_of(text)), model.get_parameter
    layer, x_C = seen.layers[2], seen.residual[-1][0, 9]
    attended = layer.weights_BHTS[0, 1, 9, 4]
    out_C = attended * weight("blocks.2.attn.out.weight")[:, 8:] @ layer.v_BHSD[0, 1, 4]
    direction_C = (out_C - out_C.mean()) / (x_C.var(correction=0) + 1e-5).sqrt()
    logits_V = weight("head.weight") @ (direction_C * weight("final_norm.weight"))
    logits_V -= logits_V.mean()
    best = logits_V.argsort(descending=True)[:4]
    expected = [attended, out_C.norm(), logits_V[CHARS.index("e")], *logits_V[best]]
    assert read(tab, "#step p") == pytest.approx([*map(float, expected)], abs=6e-3)
    rank = 1 + int((logits_V > logits_V[CHARS.index("e")]).sum())
    assert tab.inner_text("#step p >> nth=1").endswith(f", rank {rank} of {len(CHARS)}.")
    tab.mouse.move(0, 0)

    act(tab, "#steps button >> nth=4")
    changes, before = {}, loss_of(logits_of(model, text), text)
    for i, name in enumerate(HEADS):
        zeros = {"layer": i // H, "head": i % H, "off": "zero"}
        changes[name] = loss_of(logits_of(model, text, zeros), text) - before
    worst = sorted(changes, key=lambda name: -changes[name])[:3]
    rows = tab.locator("#step tr").all_inner_texts()[1:]
    names = [row.split()[1] for row in rows]
    assert {"L2H1", *worst} <= {*names} and names[0] == worst[0]
    expected = [
        f"Ablate {name}\t{before + changes[name]:.3f} ({changes[name]:+.2f})" for name in names
    ]
    assert [row[: len(each)] for row, each in zip(rows, expected, strict=True)] == expected
    act(tab, "#step button >> nth=0")
    assert read(tab, "#change")[-1] == pytest.approx(changes[worst[0]], abs=6e-4)
    assert tab.inner_text("#step button >> nth=0") == f"Restore {worst[0]}"


def test_guided_steps_are_true_of_an_edited_model(show: Show) -> None:
    tab = show(address="#guide=2&head=L1H1&edit=hide%404&edit=L1H1%3Dmean")
    assert "weights of the 11 tokens" in tab.inner_text("#step")  # of 12
    press(tab, "1")
    assert "the model, with the edits, gives" in tab.inner_text("#step")
    press(tab, "3")
    assert "sum, 11 keys" in tab.inner_text("#step")
    act(tab, "#typed", TEXT + "x")  # the edit does not fit a text beyond the context
    assert "sum, 7 keys" in tab.inner_text("#step")
    cases = (("L1H1", True), ("L1H0", False), ("L2", True), ("L1", False))
    edits = [(f"patch%4011/{where}", replaced) for where, replaced in cases]
    for edit, replaced in (*edits, ("hide%404", False), ("move%4011=2", False)):
        tab = show(address=f"#guide=4&head=L1H1&other=so+be+or+not&edit={edit}")
        assert ("An edit replaces what L1H1 adds" in tab.inner_text("#step")) == replaced


def test_selected_head_shows_its_ablation(tab: Any, report: Report) -> None:
    ablation = report.data["ablation"]
    assert tab.inner_text(SELECTED) == HEADS[report.data["opening"]["head"]]
    measured = "5 of 16 validation sequences of 12 tokens of text.txt"
    assert f"{measured}; " in tab.inner_text("#moment")
    select(tab, 5)
    expected = [ablation[f"{kind}{of}"][5] for kind in OFF for of in ("", "_error")]
    act(tab, "#show-scores")
    assert read(tab, "#scores .number")[-4:] == pytest.approx(expected, abs=6e-4)
    tab.select_option("#measure", "ablation mean")
    assert "only at step 3;" in tab.inner_text("#formation-note")
    assert read(tab, ".pick > span > span") == pytest.approx(ablation["mean"], abs=6e-4)


def test_big_letters_show_one_part_alone(show: Show) -> None:
    tab = show()
    parts = {
        "head": ["text", "steps"],
        "network": ["network"],
        "text": ["text", "next"],
        "bar": ["bar"],
    }
    for part, alone in parts.items():
        press(tab, "b")
        wait_for_address(tab, f"big={part}")
        names = tab.evaluate(f"{SECTIONS}.map(each => each.checkVisibility() && each.id)")
        assert [name.removesuffix("-section") for name in names if name] == alone
        assert tab.is_visible("#map") == (part == "head") and tab.evaluate(SMALLEST) >= 20
    press(tab, "Escape")
    assert tab.is_visible("#live") and tab.is_visible("#bar") and tab.is_visible("#more")


def test_big_letters_show_whole_steps_beside_the_map(show: Show) -> None:
    """With the text, its arcs and what colors mean. The sentence about a cell moves nothing."""
    tab = show(address="#big=head&head=L1H1")
    tab.set_viewport_size({"width": 1280, "height": 720})
    for key in "12345":
        press(tab, key)
        places = tab.evaluate(PLACES)
        point_at(tab, 5, 3)
        settle(tab)
        if key in "15":  # the sentences of others are about the cell
            assert tab.evaluate(PLACES) == places
        assert tab.locator("#arcs path").count() > 0
        mapped, text = (tab.locator(each).bounding_box() for each in ("#map", "#text"))
        assert text["x"] >= mapped["x"] + mapped["width"] and text["y"] < mapped["y"] + 200
        whole = "each => each.scrollHeight <= each.clientHeight"
        assert all(tab.eval_on_selector(f"#{each}", whole) for each in ("step", "steps-section"))
        assert tab.locator(".legend:visible").count() == 2
        tab.mouse.move(0, 0)


def test_keyboard_selects_edits_and_plays(tab: Any) -> None:
    act(tab, ".bar-button >> nth=1")
    before = read(tab, "#contributions .number")
    act(tab, "#contributions td button >> nth=0")
    assert tab.inner_text(SELECTED) == "L0H0"
    tab.check("#contributions input")  # relative to the runner-up
    assert read(tab, "#contributions .number") != before
    for key, head in (("Right", 1), ("Down", 3), ("Left", 2), ("Left", 2), ("Up", 0)):
        press(tab, f"Arrow{key}")
        assert tab.inner_text(SELECTED) == HEADS[head]
    press(tab, "[", "x", "s")
    assert "step 1 ·" in tab.inner_text("#moment") and tab.is_visible("#edits")
    assert tab.get_attribute("[data-stage=scores]", "aria-pressed") == "true"
    press(tab, "u", "4", "t", "End", "x", "u")  # in the text field, letters are text
    assert tab.input_value("#typed") == TEXT + "xu" and not tab.is_visible("#edits")
    tab.evaluate("""() => {
      globalThis.seen = [];
      new MutationObserver(() => seen.push(document.body.dataset.snapshot))
        .observe(document.body, { attributeFilter: ["data-snapshot"] });
    }""")
    press(tab, "Escape", "r", "p")  # at the last step, playing restarts from the first
    assert tab.inner_text("#steps [aria-pressed=true]") == "1 Type"
    assert tab.input_value("#typed") == TEXT + "xu"
    tab.wait_for_function("() => seen.includes('1')")


def test_page_opens_with_the_best_step_and_later_ones_can_be_visited(
    show: Show, report: Report
) -> None:
    data = json.loads(json.dumps(report.data))
    data["run"]["step"] = 1
    last, first, best = report.weights
    tab = show(make_html(data, [best, first, last]))
    opened = tab.input_value("#typed"), tab.inner_text("#moment"), read(tab, "#next .number")
    assert opened[1].startswith("step 1 ·") and "best step" in opened[1]
    assert tab.locator("#loss .mark title").all_text_contents()[-1] == "best step"
    assert tab.locator("#loss .dot").count() == 3 and tab.input_value("#slider") == "1"
    for index, step in enumerate((0, 1, 3)):
        act(tab, "#slider", str(index))
        assert tab.inner_text("#moment").startswith(f"step {step} ·")
        assert_predicts(tab, logits_of(report.models[step], TEXT)[-1])
        assert "matches PyTorch" in tab.text_content("#equality")
    assert "step=3" in wait_for_address(tab, "step=3")
    press(tab, "r")
    assert opened == (
        tab.input_value("#typed"),
        tab.inner_text("#moment"),
        read(tab, "#next .number"),
    )


def test_picture_is_of_the_open_panel_or_the_selected_head(tab: Any) -> None:
    """A table has no picture."""
    select(tab, 5)
    for panel, name in ((None, "L2H1"), ("lens", "L2H1"), ("circuit", "circuit")):
        if panel:
            act(tab, f"#show-{panel}")
        with settle(tab).expect_download() as download:
            tab.click("#save")
        assert download.value.suggested_filename == f"plain {name}.png"
        assert len(Path(download.value.path()).read_bytes()) > 10_000


def test_hostile_text_is_shown_literally(show: Show, report: Report) -> None:
    data = json.loads(json.dumps({**report.data, "snapshots": report.data["snapshots"][-1:]}))
    data["run"]["name"] = data["run"]["config"]["data"]["source"] = HOSTILE * 4
    data["checks"][0]["where"] = HOSTILE
    tab = show(make_html(data, report.weights[:1]))
    assert tab.inner_text("#name") == HOSTILE * 4 and HOSTILE in tab.text_content("#lead")
    assert not tab.is_visible("#slider") and "1 of 3 snapshots" in tab.inner_text("#omitted")
    assert tab.input_value("#typed") == TEXT
    act(tab, "#typed", HOSTILE)
    assert "".join(tab.locator("#text .token").all_inner_texts()) == shown(HOSTILE)
    assert tab.locator("img").count() == 0 and tab.locator("script").count() == 3


@pytest.mark.parametrize(
    "kind", [{"mlp_ratio": 0}, {"n_kv_head": 1, "window": [3, 0, 5]}], ids=["attention", "grouped"]
)
def test_kinds_of_attention_match_pytorch(
    kind: dict[str, Any], workplace: Path, show: Show
) -> None:
    """So does a key that is moved in one of the heads that share it."""
    Path("text.txt").write_text("to be or not " * 200)
    run = make_run(Path("runs/a"), CHARS, "text.txt", **kind)
    flags = ["--source=text.txt", "--sequences=2", f"--prompt={TEXT}"]
    assert study.main(["report", "a", *flags]) == 0
    tab = show(make_html(*parse_report(run)), address="#edit=move@2/L1H1=4")
    assert "matches PyTorch" in tab.inner_text("#equality")
    assert "The key of token 2 '␣' is moved by 4 in L1H1." in tab.inner_text("#edit-list")
    model = open_run(run, "best").model()
    edit = {"layer": 1, "head": 1, "position": 2, "by": 4}
    assert_predicts(tab, logits_of(model, TEXT, edit)[-1], logits_of(model, TEXT)[-1])
    press(tab, "u")
    for head, k in ((1, 4), (5, 7)):  # the windows of layers differ
        assert_meets(tab, rounded(model, False), head, q=10, k=k)


@pytest.mark.parametrize("kind", ["byte", "bpe"])
def test_byte_and_bpe_tokens_match_the_tokenizer(kind: str, workplace: Path, show: Show) -> None:
    """An address keeps the tokens, even if their bytes are not UTF-8."""
    merges = train_bpe(["the cat that sat thereby 've said \u00e9 42"] * 9, 290).merges
    special = ("<|end|>", "hat", "<|end|>the", "t ,\n")
    tokenizer = BPETokenizer(merges, special, 2) if kind == "bpe" else ByteTokenizer()
    Path("text.txt").write_text("the cat that sat " * 1200)
    run = make_run(Path("runs/a"), None, "text.txt", tokenizer, block_size=99, n_layer=1)
    assert study.main(["report", "--source=text.txt", "--sequences=2", "--prompt=caf\u00e9 x"]) == 0
    given = make_html(*parse_report(run))
    tab = show(given)
    spans = tab.locator("#text .token")
    text = "the cat's hat, they'll 've 42nd  x na\u00efve \U0001f600\u200d \u0301\u00e9\u00a0\u3000"
    text += " a\n\n  b \t<|end|>the\x85 the\ufeff"
    act(tab, "#typed", text)
    expected = [visible(tokenizer.labels[i]) for i in tokenizer.encode(text)]
    assert [visible(span) for span in spans.all_inner_texts()] == expected
    if kind == "bpe":
        assert "<|end|>the" in expected and expected.count("hat") == 1
        show(given, address=f"#text={len(tokenizer.labels) - 1}")
        assert spans.all_inner_texts() == ["<|unused␣1|>"]
    show(given, address="#text=" + ".".join(map(str, range(120, 200))))  # invalid UTF-8
    tab.focus("#typed")
    press(tab, "Control+End", "!")
    before = spans.all_inner_texts()
    act(tab, "#ablate")
    show(given, address=wait_for_address(tab, "edit="))
    assert spans.all_inner_texts() == before
