"""The report page in a real browser: it shows what PyTorch computes, whatever is done to it, and
needs nothing but itself."""

import base64
import copy
import dataclasses
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

import study
from common.tables import visible
from data.bpe import BPETokenizer, train_bpe
from lens.capture import capture, head_replaced
from lens.measure import ablate, logit_lens, losses_of, mean_outputs
from lens.report.page import content_hash, pack, page, to_json
from lens.report.weights import pack_weights
from lens.subject import MeasureOptions, Subject
from model.generate import Sampling, generate
from model.gpt import GPT
from run.checkpoint import open_run
from run.snapshots import load_snapshot, save_snapshot
from tests.conftest import make_run
from tests.lens.test_engine import edited
from training.state import TrainState

Array = npt.NDArray[Any]
Show = Callable[..., Any]  # an open page; playwright may be absent, and so its types
CHARS = "\n abcdefghijklmnopqrstuvwxyz"
TEXT = "to be or not"  # of the run's context
HOSTILE = "</script><img src=x onerror=alert(1)>"
L, H, B, V = 3, 2, 12, len(CHARS)
HEADS = [f"L{i}H{h}" for i in range(L) for h in range(H)]
STEPS = (0, 1, 3)
BEFORE_LAST = 1


@dataclass
class Report:
    """A report of a run of random weights, and the models that it should be."""

    data: dict[str, Any]
    weights: list[bytes]
    models: dict[int, GPT]  # by step; rounded as in the page
    sequences_BT: torch.Tensor
    exact: GPT  # of the last step, before it was rounded


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    folder = tmp_path_factory.mktemp("page")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        random = np.random.default_rng(0)
        Path("text.txt").write_text("".join(random.choice(list(CHARS), 2000)))
        run = make_run(Path("runs/plain"), CHARS, "text.txt", ngrams=3)
        models = {}
        for step in STEPS:
            saved = open_run(run, "last")
            model = saved.model(torch.device("cpu"))
            if step < STEPS[-1]:
                with torch.no_grad():
                    for weight in model.parameters():
                        weight.mul_(0.5 + 0.2 * step)
                state = TrainState(step, train_loss=1.0)
                save_snapshot(run, model, dataclasses.replace(saved.header, state=state))
                load_snapshot(model, run / "snapshots" / f"{step:08d}.safetensors")
            models[step] = model
        exact = open_run(run, "last").model(torch.device("cpu"))
        for model in models.values():
            model.load_state_dict(pack_weights(model.state_dict(), False)[1])
        flags = [f"--prompt={TEXT}", "--sequences=5", "--checkpoint=last"]
        assert study.main(["report", *flags]) == 0
        data, weights = taken_apart(Path("runs/plain/report.html").read_text(encoding="utf-8"))
        sequences_BT = Subject("plain", MeasureOptions(checkpoint="last")).sequences(5)
    return Report(data, weights, models, sequences_BT, exact)


def taken_apart(html: str) -> tuple[dict[str, Any], list[bytes]]:
    (data,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', html, re.S)
    weights = re.findall(r'class="weights">(.*?)</script>', html)
    return json.loads(data), [base64.b64decode(each) for each in weights]


@pytest.fixture
def show(report: Report, window: tuple[Any, list[str]], tmp_path: Path) -> Iterator[Show]:
    """Open a page from disk. Whatever it says or asks for is a failure."""
    file, (tab, trouble) = tmp_path / "report.html", window

    def open_page(
        data: dict[str, Any] | None = None, weights: list[bytes] | None = None,
        width: int = 1280, scheme: str = "light", address: str = "",
    ) -> Any:  # fmt: skip
        file.write_text(page(data or report.data, weights or report.weights), encoding="utf-8")
        tab.set_viewport_size({"width": width, "height": 900})
        tab.emulate_media(color_scheme=scheme)
        tab.mouse.move(0, 0)
        tab.goto("about:blank")
        tab.goto(file.as_uri() + address)
        return settle(tab)

    trouble.clear()
    yield open_page
    tab.goto("about:blank")  # nothing of this page goes on under the next test
    assert {url.split("#")[0] for url in trouble} <= {file.as_uri()}


@pytest.fixture
def tab(show: Show) -> Any:
    """The page of the run."""
    return show()


def settle(tab: Any) -> Any:
    """Wait until all of it is computed."""
    tab.wait_for_selector("body[data-busy=no]")
    return tab


def ask(tab: Any, call: str) -> Any:
    """What the page's global says to the console."""
    return tab.evaluate(f"glassgpt.{call}")


def type_text(tab: Any, text: str) -> None:
    tab.fill("#typed", text)
    settle(tab)


def ids_of(text: str) -> torch.Tensor:
    return torch.tensor([[CHARS.index(char) for char in text]])


def probabilities(model: GPT, text: str) -> Array:
    with torch.no_grad():
        found: Array = model(ids_of(text))[0].softmax(-1).numpy()
    return found


def numbers(text: str) -> list[float]:
    return [float(found) for found in re.findall(r"[-+]?\d+\.\d+", text)]


def frame(tab: Any, canvas: str = "#map") -> list[float]:
    """Where the cells of a map begin, and how large they are: left, top, width, height."""
    names = ("left", "top", "side", "tall")
    return [float(tab.get_attribute(canvas, f"data-{name}")) for name in names]


def point_at(tab: Any, q: int, k: int, click: bool = False) -> str:
    """Put the pointer on a cell of the big map; what the page says about it."""
    left, top, side, _ = frame(tab)
    at = {"x": left + (k + 0.5) * side, "y": top + (q + 0.5) * side}
    (tab.click if click else tab.hover)("#map", position=at)
    return str(tab.inner_text("#readout"))


def go_to(tab: Any, snapshot: int) -> None:
    tab.fill("#slider", str(snapshot))
    settle(tab)


def select(tab: Any, head: int) -> None:
    tab.get_by_role("button", name=f"layer {head // H} head {head % H},").click()


def switch(tab: Any, name: str) -> None:
    tab.get_by_role("switch", name=name, exact=True).click()
    settle(tab)


def selected(tab: Any) -> str:
    return str(tab.inner_text(".pick[aria-pressed=true] b"))


def picture(tab: Any, selector: str) -> str:
    return str(tab.eval_on_selector(selector, "canvas => canvas.toDataURL()"))


def bars(tab: Any) -> list[tuple[str, list[float]]]:
    """The characters that are expected, each with its numbers."""
    rows = tab.locator("#next tr:has(.write)").all_inner_texts()
    return [(row.split()[0], numbers(row)) for row in rows]


def shown(char: str) -> str:
    return {" ": "␣", "\n": "↵"}.get(char, char)


# --- what it computes ----------------------------------------------------------------------------


def test_it_opens_alone_and_says_how_far_it_is_from_pytorch(tab: Any, report: Report) -> None:
    assert tab.title() == "plain · glassgpt"
    assert "3 layers x 16 wide, 2 heads, context 12" in tab.inner_text("#result")
    said = tab.inner_text("#equality")
    assert said.startswith("The page computes as PyTorch does")
    error, allowed, logit, nats = (float(x) for x in re.findall(r"-?\d\.\de[-+]\d+", said))
    assert 0 <= error < allowed / 10
    rounding = report.data["snapshots"][-1]["rounding"]
    assert [logit, nats] == pytest.approx([rounding["logit"], rounding["nats"]], rel=0.06)
    assert tab.evaluate("[typeof state, typeof view, typeof Engine, typeof glassgpt]") == [
        *["undefined"] * 3, "object",
    ]  # fmt: skip
    assert tab.inner_text("#checks summary").startswith("26 of 26 checks of the run passed")


def test_logits_and_attention_are_pytorchs(tab: Any, report: Report) -> None:
    for step, model in report.models.items():
        seen = capture(model, ids_of(TEXT))
        logits = ask(tab, f"logits('{TEXT}', {{step: {step}}})")
        assert np.allclose(logits, seen.logits_BTV[0], atol=1e-4)
        for layer, head in ((0, 0), (L - 1, H - 1)):
            rows = ask(tab, f"attention('{TEXT}', {layer}, {head}, {{step: {step}}})")
            weights = seen.layers[layer].weights_BHTS[0, head]
            for t, row in enumerate(rows):
                assert np.allclose(row, weights[t, : t + 1], atol=1e-5)
    with head_replaced(report.models[1], 1, 0, 0.0):
        expected = probabilities(report.models[1], TEXT)
    logits = torch.tensor(ask(tab, f"logits('{TEXT}', {{step: 1, off: [[1, 0]]}})"))
    assert np.allclose(logits.softmax(-1), expected, atol=1e-5)


def test_ablation_is_that_of_the_table(tab: Any, report: Report) -> None:
    """On the same windows; in the page the means are those of the weights before rounding."""
    changes = ablate(report.models[3], report.sequences_BT).changes
    windows, targets = report.sequences_BT[:, :-1].tolist(), report.sequences_BT[:, 1:]

    def loss(options: str) -> float:
        logits = torch.tensor([ask(tab, f"logits({each}, {options})") for each in windows])
        return losses_of(logits, targets).mean().item()

    whole = loss("{}")
    for layer, head in ((0, 1), (2, 0)):
        for kind in ("zero", "mean"):
            change = loss(f"{{off: [[{layer}, {head}, '{kind}']]}}") - whole
            assert change == pytest.approx(float(changes[kind][layer, head]), abs=1e-4), kind
    torch.testing.assert_close(
        torch.tensor(np.frombuffer(base64.b64decode(report.data["snapshots"][1]["means"]), "<f4")),
        mean_outputs(report.models[1], report.sequences_BT).flatten(),
    )


def test_greedy_text_is_pytorchs_past_the_context_too(tab: Any, report: Report) -> None:
    for step in (1, 3):
        tokens = generate(report.models[step], ids_of("to be"), 300, Sampling(temperature=0.0))
        expected = "".join(CHARS[int(token)] for token in tokens)
        assert ask(tab, f"generate('to be', 300, {{step: {step}}})") == expected


def test_votes_sum_to_the_logit(tab: Any, report: Report) -> None:
    logits = ask(tab, f"logits('{TEXT}')")
    for t, char in ((0, "a"), (7, " "), (11, "z")):
        votes = ask(tab, f"votes('{TEXT}', {t}, '{char}')")
        total = votes["embedding"] + votes["biases"] + sum(votes["heads"]) + sum(votes["mlps"])
        assert total == pytest.approx(logits[t][CHARS.index(char)], abs=1e-4)


def test_patching(tab: Any) -> None:
    """From the text itself nothing changes; from another one, at all positions, all does."""
    other = "to be ok not"
    everywhere = [f"patch@{t}/L0" for t in range(B)]
    words = [*everywhere, "patch@3/L1H1", "patch@5/L2"]
    plain, theirs = ask(tab, f"logits('{TEXT}')"), ask(tab, f"logits('{other}')")
    assert ask(tab, f"logits('{TEXT}', {{edits: {words}, other: '{TEXT}'}})") == plain
    assert ask(tab, f"logits('{TEXT}', {{edits: {everywhere}, other: '{other}'}})") == theirs
    assert ask(tab, f"logits('{TEXT}', {{edits: ['patch@7/L1'], other: '{other}'}})") != plain


BREAKS = {  # a text in a script, and what it becomes
    "a weight": ("", ""),
    "eps": ("EPS = 1e-5", "EPS = 1e-3"),
    "the sign of a rotation": ("a * cos - b * sin", "a * cos + b * sin"),
    "a row of n-grams": ("tokens[t - i] ?? 0", "tokens[t - i] ?? 1"),
    "rows after an edit": ("this.forget(0, same);", "this.forget(0, same + 1);"),
    "layers above an edit": (
        "if (!isPatch(edit)) this.forget(layer + 1, position)",
        "if (!isPatch(edit)) this.forget(this.L, 0)",
    ),
    "half precision": ("1 + fraction / 1024", "1"),
    "a logit that is no number": (
        'const logits = engine.take("logits", V);\n  const { rows',
        'const logits = engine.take("logits", V);\n  logits[5] = NaN;\n  const { rows',
    ),
}


@pytest.mark.parametrize("what", BREAKS)
def test_what_is_broken_turns_red(
    what: str, show: Show, report: Report, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights, (right, wrong) = list(report.weights), BREAKS[what]
    if what == "a weight":
        raw = bytearray(weights[-1])
        raw[-3] ^= 0x40  # of the head
        weights[-1] = bytes(raw)
    html = page(report.data, weights)
    assert right in html
    script = re.findall(r'<script type="module">(.*?)</script>', html, re.S)[0]
    changed = script.replace(right, wrong)
    html = html.replace(script, changed).replace(content_hash(script), content_hash(changed))
    monkeypatch.setattr("tests.lens.test_page.page", lambda data, weights: html)
    tab = show()
    assert "does not compute what PyTorch does" in tab.inner_text("#equality")
    assert tab.get_attribute("#equality", "class") == "trouble"
    assert not tab.is_visible("#live") and not tab.is_visible("#lens-section")
    assert tab.is_visible("#ablation-section")
    if what == "a weight":  # the other snapshots are whole
        go_to(tab, 0)
        assert tab.is_visible("#live") and tab.get_attribute("#equality", "class") == "quiet"


# --- what one can do -----------------------------------------------------------------------------


def test_typing(tab: Any, report: Report) -> None:
    type_text(tab, "abcdefgh")
    before = ask(tab, "attention('abcdefgh', 1, 1)")
    tab.focus("#typed")
    tab.keyboard.press("End")
    for _ in range(3):
        tab.keyboard.press("ArrowLeft")
    tab.keyboard.type("x")
    settle(tab)
    assert "Unchanged: the first 5 tokens" in tab.inner_text("#text-state")
    assert tab.locator("#text .token.kept").count() == 5
    assert ask(tab, "attention('abcdexfgh', 1, 1)")[:5] == before[:5]  # to the last bit
    tokens = [shown(char) for char in "abcdexfgh"]
    assert tab.locator("#text .token").all_inner_texts() == tokens
    p = probabilities(report.models[3], "abcdexfgh")
    best = np.argsort(-p[-1])[:8]
    assert [name for name, _ in bars(tab)] == [shown(CHARS[i]) for i in best]
    values = [value for _, (value,) in bars(tab)]
    assert values == pytest.approx(p[-1][best].tolist(), abs=6e-4)


def test_characters_that_the_model_never_saw(tab: Any) -> None:
    type_text(tab, "abc\u00e9def")
    assert "The model never saw '\u00e9'" in tab.inner_text("#text-state")
    assert "".join(tab.locator("#text .token").all_inner_texts()) == "abc\u00e9def"
    assert tab.locator("#text .unseen").all_inner_texts() == ["\u00e9"]
    assert tab.locator("#text .unread").count() == 3 and "token 2 'c'" in tab.inner_text("#next")
    type_text(tab, "\u00e9a")
    assert "nothing stands before it" in tab.inner_text("#text-state")
    assert not tab.is_visible("#head-section") and tab.inner_text("#text") == "\u00e9a"
    type_text(tab, "")
    assert tab.inner_text("#text-state") == "Nothing to read: type."
    type_text(tab, "a")
    assert tab.is_visible("#head-section") and "the first, predicted" in tab.inner_text("#next")


def test_a_long_text_is_seen_through_the_context(tab: Any, report: Report) -> None:
    type_text(tab, "a long text of more than so many tokens")
    start = len("a long text of more than so many tokens") - tab.locator("#text .token").count()
    seen = "a long text of more than so many tokens"[start:]
    assert start == 30 and f"the last {len(seen)} of 39 tokens" in tab.inner_text("#text-state")
    p = probabilities(report.models[3], seen)[-1]
    values = [value for _, (value,) in bars(tab)]
    assert values == pytest.approx(-np.sort(-p)[:8], abs=6e-4)


def test_switching_off(tab: Any, report: Report) -> None:
    model = report.models[3]
    before = probabilities(model, TEXT)
    tab.select_option("#instead", "zero")
    switch(tab, "L1H0")
    with head_replaced(model, 1, 0, 0.0):
        after = probabilities(model, TEXT)
    best = np.argsort(-after[-1])[:8]
    true = [[after[-1, i], before[-1, i]] for i in best]
    assert np.allclose([value for _, value in bars(tab)], true, atol=6e-4)
    at = (np.arange(B - 1), ids_of(TEXT)[0, 1:].numpy())
    losses = [-np.log(p[at]).mean() for p in (before, after)]
    true_change = [*losses, losses[1] - losses[0]]
    assert numbers(tab.inner_text("#change")) == pytest.approx(true_change, abs=6e-4)
    assert tab.inner_text(".chip") == "L1H0 off \u00d7"
    assert (
        tab.get_by_role("switch", name="L1H0", exact=True).get_attribute("aria-checked") == "false"
    )
    switch(tab, "L1H0")
    assert not tab.is_visible("#edits")

    tab.select_option("#instead", "mean")
    switch(tab, "L2H1")
    means = mean_outputs(report.exact, report.sequences_BT)
    with head_replaced(model, 2, 1, means[2, 1]):
        after = probabilities(model, TEXT)
    assert [value[0] for _, value in bars(tab)] == pytest.approx(-np.sort(-after[-1])[:8], abs=6e-4)
    switch(tab, "layer 0 mlp")
    switch(tab, "layer 1 attn")
    assert tab.locator(".chip").count() == 3
    edits = [{"layer": 0, "off": "mlp"}, {"layer": 2, "head": 1, "off": "mean"}]
    edits += [{"layer": 1, "head": head, "off": "zero"} for head in range(H)]
    with edited(model, edits, means):
        after = probabilities(model, TEXT)
    assert [value[0] for _, value in bars(tab)] == pytest.approx(-np.sort(-after[-1])[:8], abs=6e-4)
    tab.locator(".chip").first.click()
    settle(tab)
    assert tab.locator(".chip").count() == 2
    tab.click("#undo")
    settle(tab)
    assert [value for _, (value,) in bars(tab)] == pytest.approx(
        -np.sort(-before[-1])[:8], abs=6e-4
    )


def test_the_slider_moves_everything(tab: Any, report: Report) -> None:
    type_text(tab, "and so it be")
    tab.fill("#temperature", "0")
    settle(tab)
    seen = set()
    for i, (step, model) in enumerate(report.models.items()):
        go_to(tab, i)
        told, p = report.data["snapshots"][i], probabilities(model, "and so it be")
        assert f"step {step} ·" in tab.inner_text("#moment")
        at = (np.arange(B - 1), ids_of("and so it be")[0, 1:].numpy())
        losses = [told["lens_loss"][-1], -np.log(p[at]).mean()]
        assert numbers(tab.inner_text("#moment")) == pytest.approx(losses, abs=6e-4)
        assert [value for _, (value,) in bars(tab)] == pytest.approx(-np.sort(-p[-1])[:8], abs=6e-4)
        tokens = generate(model, ids_of("and so it be"), 80, Sampling(temperature=0.0))
        expected = "".join(shown(CHARS[int(token)]) for token in tokens)
        assert tab.inner_text("#continuation") == expected
        losses = [told["copying"]["first"], told["copying"]["second"]]
        assert numbers(tab.inner_text("#copying")) == pytest.approx(losses, abs=6e-4)
        names = tab.locator("#lens tbody th").all_inner_texts()
        assert [numbers(name)[0] for name in names] == pytest.approx(told["lens_loss"], abs=6e-3)
        lens = [
            model.unembed(x)[0].argmax(-1) for x in capture(model, ids_of("and so it be")).residual
        ]
        cells = tab.locator("#lens tbody td").all_inner_texts()
        assert cells == [shown(CHARS[int(i)]) for i in torch.cat(lens)]
        captions = tab.locator(".pick > span > span").all_inner_texts()
        scores = told["scores"]["previous_token"]
        assert [float(text) for text in captions] == pytest.approx(scores, abs=6e-3)
        seen |= {picture(tab, "#map"), picture(tab, ".head canvas")}
    assert len(seen) == 6
    losses = logit_lens(report.models[1], report.sequences_BT)
    assert report.data["snapshots"][1]["lens_loss"] == pytest.approx(losses, abs=1e-5)
    assert tab.locator("#formation polyline").count() == L * H
    tab.click("#loss", position={"x": 4, "y": 10})
    tab.wait_for_selector("body[data-snapshot='0']")


def test_hiding_a_token(tab: Any, report: Report) -> None:
    tab.locator("#text .token").nth(4).click()
    tab.click("#hide-all")
    settle(tab)
    assert tab.inner_text(".chip") == "token 4 hidden from all heads \u00d7"
    with edited(report.models[3], [{"hide": 4}], torch.zeros(L, H, 8)):
        after = probabilities(report.models[3], TEXT)
    assert [value[0] for _, value in bars(tab)] == pytest.approx(-np.sort(-after[4])[:8], abs=6e-4)
    rows = ask(tab, f"attention('{TEXT}', 0, 1, {{edits: ['hide@4']}})")
    assert all(sum(row) == pytest.approx(1) for row in rows)
    assert all(row[4] == 0 for row in rows[5:]) and rows[4][4] > 0
    assert "hidden" in point_at(tab, 8, 4) and "weight" in point_at(tab, 4, 4)
    tab.mouse.move(0, 0)
    tab.keyboard.press("h")
    settle(tab)
    assert not tab.is_visible("#edits")
    select(tab, 3)
    tab.click("#hide-one")
    settle(tab)
    assert tab.inner_text(".chip") == "token 4 hidden from L1H1 \u00d7"
    other = ask(tab, f"attention('{TEXT}', 1, 0, {{edits: ['hide@4/L1H1']}})")
    own = ask(tab, f"attention('{TEXT}', 1, 1, {{edits: ['hide@4/L1H1']}})")
    assert own[8][4] == 0 and other[8][4] > 0


def test_who_voted(tab: Any) -> None:
    tab.locator(".bar-button").nth(2).click()
    table = [numbers(row) for row in tab.locator("#votes tr").all_inner_texts()]
    *parts, (logit,) = table[1:]
    assert [len(part) for part in parts] == [H + 1] * L + [1, 1]
    assert sum(map(sum, parts)) == pytest.approx(logit, abs=0.06)
    char = {"␣": " ", "↵": "\\n"}.get(bars(tab)[2][0], bars(tab)[2][0])
    index = CHARS.index(char.replace("\\n", "\n"))
    assert logit == pytest.approx(ask(tab, f"logits('{TEXT}')")[-1][index], abs=6e-3)
    tab.locator("#votes tr").nth(2).locator("td").nth(1).click()
    assert selected(tab) == "L1H1"
    switch(tab, "layer 2 mlp")
    assert numbers(tab.locator("#votes tr").nth(3).inner_text())[-1] == 0


def test_patching_in_the_page(tab: Any, report: Report) -> None:
    model, other = report.models[3], "tz be or not"
    tab.fill("#other", other)
    settle(tab)
    tab.click("#fill")
    tab.wait_for_selector("body[data-filled]")
    ours, theirs = (capture(model, ids_of(text)) for text in (TEXT, other))
    ends = [seen.logits_BTV[0, -1] for seen in (ours, theirs)]
    a, b = (int(end.argmax()) for end in ends)
    if a == b:
        b = int((ends[1] - ends[0]).index_fill(0, torch.tensor([a]), -torch.inf).argmax())

    def difference(logits_V: torch.Tensor) -> float:
        return float(logits_V[b] - logits_V[a])

    low, high = map(difference, ends)
    assert numbers(tab.inner_text("#patch-state"))[-2:] == pytest.approx([low, high], abs=6e-3)
    left, top, side, tall = frame(tab, "#patches")
    for layer, t in ((0, 1), (1, 1), (2, 6), (2, 11)):
        row = theirs.residual[layer][0, t].tolist()
        with edited(model, [{"layer": layer, "position": t, "row": row}], torch.zeros(L, H, 8)):
            share = (difference(model(ids_of(TEXT))[0, -1].detach()) - low) / (high - low)
        place = {"x": left + (t + 0.5) * side, "y": top + (layer + 0.5) * tall}
        tab.hover("#patches", position=place)
        assert numbers(tab.inner_text("#patch-readout"))[0] == pytest.approx(share, abs=2e-3)
    tab.click("#patches", position=place)
    settle(tab)
    assert tab.inner_text(".chip") == "layer 2 at token 11 from the other text \u00d7"
    patched = ask(tab, f"logits('{TEXT}', {{edits: ['patch@11/L2'], other: '{other}'}})")[-1]
    best = torch.tensor(patched).softmax(-1).sort(descending=True).values[:8].tolist()
    assert [value[0] for _, value in bars(tab)] == pytest.approx(best, abs=6e-4)
    tab.locator(".bar-button").first.click()
    *parts, (logit,) = [numbers(r) for r in tab.locator("#votes tr").all_inner_texts()][1:]
    assert sum(map(sum, parts)) == pytest.approx(logit, abs=0.06)
    assert "Logit of" in tab.inner_text("#patch-state")
    tab.click("#undo")
    settle(tab)
    tab.check("#by-head")
    tab.click("#fill")
    tab.wait_for_selector("body[data-filled]")
    left, top, side, tall = frame(tab, "#patches")
    for head, t in ((1, 1), (4, 11)):
        layer, h = divmod(head, H)
        z = theirs.layers[layer].z_BHTD[0, h, t].tolist()
        patch = {"layer": layer, "head": h, "position": t, "row": z}
        with edited(model, [patch], torch.zeros(L, H, 8)):
            share = (difference(model(ids_of(TEXT))[0, -1].detach()) - low) / (high - low)
        place = {"x": left + (t + 0.5) * side, "y": top + (head + 0.5) * tall}
        tab.hover("#patches", position=place)
        said = tab.inner_text("#patch-readout")
        assert HEADS[head] in said and numbers(said)[0] == pytest.approx(share, abs=2e-3)
    tab.click("#swap")
    settle(tab)
    assert tab.input_value("#typed") == other and tab.input_value("#other") == TEXT
    tab.fill("#other", "short")
    assert "must be equal" in tab.inner_text("#patch-state") and tab.is_disabled("#fill")
    tab.fill("#other", other)
    assert "the same" in tab.inner_text("#patch-state")


def test_writing(tab: Any, report: Report) -> None:
    ahead = tab.inner_text("#continuation")
    tab.click("#write-one")
    settle(tab)
    assert tab.input_value("#typed") == TEXT + {"␣": " ", "↵": "\n"}.get(ahead[0], ahead[0])
    assert tab.inner_text("#continuation")[:79] == ahead[1:]  # what was shown is what is written
    tab.click("#another")
    settle(tab)
    assert tab.inner_text("#continuation")[:79] != ahead[1:]
    tab.fill("#top-k", "1")
    settle(tab)
    line = tab.inner_text("#continuation").split("↵")[0]
    before = tab.input_value("#typed")
    tab.click("#write-line")
    settle(tab)
    written = tab.input_value("#typed").removeprefix(before)
    assert "".join(map(shown, written)).removesuffix("↵") == line
    tokens = generate(report.models[3], ids_of(before), 80, Sampling(temperature=0.0))
    assert "".join(CHARS[int(token)] for token in tokens).startswith(written)
    type_text(tab, "to be")
    tab.locator("#text .token").nth(2).click()
    name = bars(tab)[1][0]
    tab.locator(".write").nth(1).click()
    settle(tab)
    assert tab.input_value("#typed") == "to " + {"␣": " ", "↵": "\n"}.get(name, name)


def test_the_address_keeps_all_of_it(tab: Any, show: Show) -> None:
    type_text(tab, "be it so")
    go_to(tab, BEFORE_LAST)
    select(tab, 4)
    switch(tab, "L0H1")
    tab.fill("#other", "be if so")
    address = wait_for_address(tab, "other")
    probabilities_then = bars(tab)
    again = show(address=address)
    assert bars(again) == probabilities_then and selected(again) == "L2H0"
    assert again.input_value("#typed") == "be it so" and again.input_value("#other") == "be if so"
    assert again.inner_text(".chip") == "L0H1 off \u00d7"
    assert "step 1 ·" in again.inner_text("#moment")
    again.click("#reset")
    settle(again)
    assert again.input_value("#typed") == TEXT
    assert selected(again) == HEADS[tab_head(again)] and not again.is_visible("#edits")


def wait_for_address(tab: Any, word: str) -> str:
    """The address is kept a moment after the last change."""
    for _ in range(200):
        if word in (address := str(tab.evaluate("location.hash"))):
            return address
        tab.wait_for_timeout(50)
    raise AssertionError(f"{word} is not in {address}")


def tab_head(tab: Any) -> int:
    return int(json.loads(tab.evaluate("document.getElementById('data').textContent"))["head"])


RAPID = """
const input = (id, value) => {
  const element = document.getElementById(id);
  element.value = value;
  element.dispatchEvent(new Event("input", { bubbles: true }));
};
const click = (selector, i = 0) => document.querySelectorAll(selector)[i].click();
const key = (name) => document.body.dispatchEvent(
  new KeyboardEvent("keydown", { key: name, bubbles: true }));
const pause = (ms) => new Promise((done) => setTimeout(done, ms));
const over = () => document.querySelector("#lens td").dispatchEvent(
  new PointerEvent("pointerover", { bubbles: true }));
(async () => {
  const steps = [
    () => input("typed", "so be it to"), () => click("#fill"), () => input("slider", 0),
    () => click("#another"), () => input("other", "so be ip to"), () => click(".switch", 3),
    () => over(), () => input("typed", "so be"), () => click("#write-one"),
    () => click("#write-one"), () => input("slider", 1), () => key("x"), () => input("top-k", 3),
    () => click("#fill"), () => input("typed", ""), () => click("#ablation button", 2),
    () => key("u"), () => input("typed", "or be it so"), () => click(".write", 2),
    () => input("other", "or be\u00e9"), () => input("slider", 2), () => click("#swap"),
    () => input("slider", 1), () => click("#another"), () => input("typed", "or not to be"),
    () => click(".switch", 5), () => over(), () => input("other", "or nit to be"),
  ];
  for (const [i, step] of steps.entries()) {
    step();
    await pause((i * PACE) % 11);
  }
  for (const edit of [...document.querySelectorAll(".chip")]) edit.click();
  input("top-k", "");
  click(".switch", 4);
  input("typed", "not to be or");
})()
"""


@pytest.mark.parametrize("pace", [0, 3, 7])
def test_whatever_is_done_in_between_the_end_is_the_same(show: Show, pace: int) -> None:
    """Fast and out of turn; then the page is what a page opened at its address is."""
    tab = show()
    tab.evaluate(RAPID.replace("PACE", str(pace)))
    address = wait_for_address(settle(tab), "not+to+be+or")

    def all_of_it(tab: Any) -> list[str]:
        settle(tab)
        parts = ["#next", "#moment", "#change", "#lens", "#worked", "#patch-state", "#text-note"]
        said = [str(tab.inner_text(part)) for part in parts]
        return [
            *said,
            picture(tab, "#map"),
            str(tab.is_visible("#patches")),
            tab.input_value("#other"),
        ]

    tab.evaluate("document.getElementById('temperature').value = '0'")
    found = all_of_it(tab)
    assert not tab.is_visible("#trouble")
    assert found == all_of_it(show(address=address))


def test_the_console_and_its_mistakes(tab: Any, report: Report) -> None:
    """It has engines of its own, and what it is asked wrongly it says."""
    switch(tab, "L0H1")
    tab.fill("#temperature", "0")
    settle(tab)
    before = tab.inner_text("#continuation")
    ask(tab, "logits('zzz', {step: 0, other: 'abc', edits: ['patch@1/L1']})")
    tab.fill("#temperature", "0.0")
    settle(tab)
    assert tab.inner_text("#continuation") == before
    plain = ask(tab, "logits('abc')")
    assert ask(tab, "logits('abc', {edits: ['patch@1/L1']})") == plain  # from no text
    assert ask(tab, "generate('abc', 0)") == ""
    for call, message in (
        ("logits('abc', {step: 77})", "step 77: there are 0, 1, 3"),
        ("check(77)", "step 77: there are 0, 1, 3"),
        ("logits('ab\u00e9')", "the model never saw \u00e9"),
        ("logits('abc', {off: [[9, 0]]})", "edit L9H0=zero"),
        ("logits('a'.repeat(13))", "13 tokens, block_size 12"),
    ):
        said = tab.evaluate(
            f"(() => {{ try {{ glassgpt.{call}; }} catch (e) {{ return e.message; }} }})()"
        )
        assert said == message
    assert tab.evaluate("glassgpt.check(1)")["agrees"]


def test_edits_that_the_text_has_no_place_for(tab: Any, show: Show) -> None:
    """They stay, say so, and do nothing."""
    for address in (
        "#text=so+be+it&other=so+bo+it&edit=patch%405/L0",
        "#text=so+be+it&edit=hide%402&edit=hide%402/L0H1",
    ):
        tab = show(address=address)
        assert "not in this text" not in tab.inner_text("#edit-list")
        assert numbers(tab.inner_text("#change"))[-1] != 0
        other = "so b" if "patch" in address else tab.input_value("#other")
        text = "so be it" if "patch" in address else "so"
        tab.fill("#other", other)
        type_text(tab, text)
        chips = tab.locator(".chip").all_inner_texts()
        assert all(": not in this text" in chip for chip in chips)
        assert numbers(tab.inner_text("#change"))[-1] == 0
    tab = show(address="#edit=L0H0%3Dzero&edit=L0H0%3Dmean&edit=L0H1%3Dzero")
    assert tab.locator(".chip").all_inner_texts() == ["L0H0 off \u00d7", "L0H1 off \u00d7"]
    tab.select_option("#instead", "mean")
    settle(tab)
    assert tab.locator(".chip").first.inner_text() == "L0H0 off (its mean) \u00d7"


def test_what_moves_is_not_called_unchanged(tab: Any, show: Show) -> None:
    tab = show(address="#text=so+be+i&edit=patch%403/L1")
    before = tab.inner_text("#next")
    type_text(tab, "so be it")  # and the other text, which follows it, is another
    assert "Unchanged" not in tab.inner_text("#text-state") and before != tab.inner_text("#next")


def test_odd_settings_of_the_draw(tab: Any) -> None:
    for field, value in (
        ("top-k", "-100"),
        ("top-k", "0.5"),
        ("temperature", "-3"),
        ("temperature", ""),
    ):
        tab.fill(f"#{field}", value)
        settle(tab)
        assert len(tab.inner_text("#continuation")) == 80 and not tab.is_visible("#trouble")


def test_a_link_inside_the_page_changes_nothing(tab: Any) -> None:
    type_text(tab, "so be it")
    tab.click("#to-ablation")
    assert tab.input_value("#typed") == "so be it"
    tab.focus("#text .token[tabindex='0']")
    tab.keyboard.press("x")
    settle(tab)
    assert tab.evaluate("document.activeElement.matches('.token')")


@pytest.mark.parametrize(
    "address",
    ["#text=%3Cimg+src%3Dx%3E", "#edit=L9H0%3Dzero&edit=patch@99/L0&edit=hide@1/L0&edit=x",
     "#step=77&head=L9H9", "#%", "#text=%ED%B2%80", "#other=%00&edit=patch@3/L1"],
)  # fmt: skip
def test_a_strange_address_is_harmless(show: Show, address: str) -> None:
    tab = show(address=address)
    assert tab.locator("img").count() == 0 and not tab.is_visible("#trouble")
    if "9" in address:
        assert not tab.is_visible("#edits") and "step 3 ·" in tab.inner_text("#moment")


def test_a_run_that_copies_says_what_to_try(show: Show, report: Report) -> None:
    data = json.loads(json.dumps(report.data))
    data["copies"], scores = True, data["snapshots"][-1]["scores"]
    scores["induction"] = [0.0, 0.0, 0.0, 0.9, 0.0, 0.1]
    scores["previous_token"] = [0.1, 0.8, 0.0, 0.9, 0.0, 0.1]
    tab = show(data)
    first, second, third = tab.locator("#try button").all()
    assert first.inner_text() == "switch off L1H1" and second.inner_text() == "switch off L0H1"
    assert tab.locator(".pick i").all_inner_texts() == [
        "",
        "previous",
        "",
        "induction",
        "",
        "",
    ]
    for button, name in ((first, "L1H1"), (second, "L0H1")):
        button.click()
        settle(tab)
        assert tab.locator(".chip").all_inner_texts() == [f"{name} off \u00d7"]
    third.click()
    settle(tab)
    assert not tab.is_visible("#edits")


# --- what it shows -------------------------------------------------------------------------------


def test_cells_say_weight_and_score(tab: Any, report: Report) -> None:
    seen = capture(report.models[3], ids_of(TEXT))
    for head, q, k in ((0, 5, 1), (4, 11, 0), (5, 9, 7)):
        select(tab, head)
        layer = seen.layers[head // H]
        weight = layer.weights_BHTS[0, head % H, q, k]
        scores = layer.q_BHTD[0, head % H] @ layer.k_BHSD[0, head % H].T / 8**0.5
        said = point_at(tab, q, k)
        assert said.startswith(f"q {q} '{shown(TEXT[q])}' → k {k} '{shown(TEXT[k])}': weight")
        assert numbers(said) == pytest.approx([float(weight), float(scores[q, k])], abs=6e-4)
    assert "masked" in point_at(tab, 3, 8) and not numbers(tab.inner_text("#readout"))


def test_stages_from_scores_to_weights(tab: Any, report: Report) -> None:
    go_to(tab, 0)
    select(tab, 1)
    layer = capture(report.models[0], ids_of(TEXT)).layers[0]
    scores = (layer.q_BHTD[0, 1] @ layer.k_BHSD[0, 1].T / 8**0.5).numpy()
    tab.click("[data-stage=scores]")
    assert numbers(point_at(tab, 3, 8)) == pytest.approx([scores[3, 8]], abs=6e-4)
    limit = np.abs(scores).max()
    legend = tab.inner_text("[data-shows=stage]")
    assert "before the mask" in legend and f"from -{limit:.2f} to {limit:.2f}" in legend
    unmasked = picture(tab, "#map")
    tab.click("[data-stage=masked]")
    assert "\u2212∞" in tab.inner_text("[data-shows=stage]") and picture(tab, "#map") != unmasked
    point_at(tab, 10, 0)
    weights = layer.weights_BHTS[0, 1, 10].numpy()
    for line, key in zip(range(1, 6), np.argsort(-weights[:11]), strict=False):
        said = numbers(tab.locator("#worked tr").nth(line).inner_text())
        true = [scores[10, key], np.exp(scores[10, key] - scores[10, :11].max()), weights[key]]
        assert said == pytest.approx(true, abs=6e-4)


def test_characters_say_surprisal_and_where_a_head_looks(tab: Any, report: Report) -> None:
    p, last = probabilities(report.models[3], TEXT), tab.locator("#text .token.here")
    assert last.count() == 1 and last.get_attribute("data-t") == str(B - 1)  # what is described
    select(tab, 4)
    tab.locator("#text .token").nth(9).hover()
    own, after = (float(p[t - 1, CHARS.index(TEXT[t])]) for t in (9, 10))
    best = -np.sort(-p[9])[:8]
    said = numbers(tab.inner_text("#next"))
    assert said == pytest.approx([-np.log(own), own, after, *best], abs=6e-4)
    tokens = tab.locator("#text .token")
    masked = tokens.evaluate_all("spans => spans.map(span => span.matches('.masked'))")
    assert masked == [t > 9 for t in range(B)]
    weights = capture(report.models[3], ids_of(TEXT)).layers[2].weights_BHTS[0, 0, 9, :10]
    colours = tokens.evaluate_all("spans => spans.map(span => span.style.backgroundColor)")
    light = [sum(map(int, re.findall(r"\d+", colour))) for colour in colours[:10]]
    assert light[int(weights.argmax())] == min(light)  # more is darker
    lens = tab.locator("#lens td.here").evaluate_all("cells => cells.map(cell => cell.dataset.t)")
    assert lens == ["9"] * (L + 1)
    tab.hover("h1")
    assert tab.locator("#text .token.masked").count() == 0


def test_a_head_is_selected_anywhere(tab: Any, report: Report) -> None:
    assert selected(tab) == HEADS[report.data["head"]]
    ablation, scores = report.data["ablation"], report.data["snapshots"][-1]["scores"]
    for head in (0, 5):
        before = picture(tab, "#map")
        tab.locator(f"#ablation button[value='{head}']").click()
        assert selected(tab) == HEADS[head] and HEADS[head] in tab.inner_text("#head-title")
        button = f"#ablation button[value='{head}']"
        outline = "button => getComputedStyle(button).borderColor"
        other = f"#ablation button[value='{5 - head}']"
        assert tab.eval_on_selector(button, outline) != tab.eval_on_selector(other, outline)
        top, bottom = tab.eval_on_selector(
            "#head-section",
            "e => [e.getBoundingClientRect().top, e.getBoundingClientRect().bottom]",
        )
        assert bottom > 0 and top < 900 and picture(tab, "#map") != before
        rows = tab.locator("#scores tr").all_inner_texts()[1:]
        assert len(rows) == len(scores) + 2
        values = [numbers(r.split("\n")[-1]) for r in rows]
        for info, value in zip(report.data["score_info"], values, strict=False):
            true = [scores[info["key"]][head], info["uniform"]]
            assert value[-2:] == pytest.approx(true, abs=6e-4)
        for kind, value in zip(("zero", "mean"), values[-2:], strict=True):
            true = [ablation[kind][head], ablation[f"{kind}_error"][head]]
            assert value[-2:] == pytest.approx(true, abs=6e-5)


def test_sorts_by_any_score(tab: Any, report: Report) -> None:
    tab.select_option("#order", "score")
    last = report.data["snapshots"][-1]["scores"]
    for key, values in (
        ("induction", last["induction"]),
        ("ablation mean", report.data["ablation"]["mean"]),
    ):
        tab.select_option("#measure", key)
        wanted = [HEADS[head] for head in np.argsort(-np.array(values), kind="stable")]
        assert tab.locator(".pick b").all_inner_texts() == wanted
    tab.select_option("#order", "layers")
    assert tab.locator(".pick b").all_inner_texts() == HEADS


def test_keys(tab: Any) -> None:
    select(tab, 0)
    for key, then in (("Right", 1), ("Down", 3), ("Left", 2), ("Left", 2), ("Up", 0), ("Up", 0)):
        tab.keyboard.press(f"Arrow{key}")
        assert selected(tab) == HEADS[then]
    for key, snapshot in (("[", 1), (",", 0), ("]", 1), (".", 2)):
        tab.keyboard.press(key)
        tab.wait_for_selector(f"body[data-snapshot='{snapshot}']")
    for stage in ("scores", "masked", "weights"):
        tab.keyboard.press("s")
        assert tab.get_attribute(f"[data-stage={stage}]", "aria-pressed") == "true"
    tab.keyboard.press("n")
    assert tab.is_checked("#own-scale")
    tab.keyboard.press("x")
    settle(tab)
    assert tab.inner_text(".chip") == "L0H0 off \u00d7"
    tab.keyboard.press("u")
    settle(tab)
    tab.keyboard.press("?")
    assert tab.is_visible("#keys")
    tab.keyboard.press("Escape")
    tab.keyboard.press("t")
    tab.keyboard.press("End")
    tab.keyboard.type("xun")  # letters are letters there
    settle(tab)
    assert tab.input_value("#typed").endswith("xun") and not tab.is_visible("#edits")
    tab.keyboard.press("Escape")
    tab.keyboard.press("r")
    settle(tab)
    assert tab.input_value("#typed") == TEXT
    tab.focus("#text .token[tabindex='0']")
    tab.keyboard.press("ArrowLeft")
    tab.keyboard.press("Enter")
    assert tab.inner_text("#readout").startswith("q 10 ")
    tab.keyboard.press("Escape")
    assert tab.inner_text("#readout").startswith("Point at")
    tab.click("#fill")
    tab.wait_for_selector("body[data-filled]")
    tab.focus("#patches")
    for key in ("ArrowLeft", "ArrowDown", "Enter"):
        tab.keyboard.press(key)
    settle(tab)
    assert tab.inner_text(".chip") == "layer 1 at token 10 from the other text \u00d7"
    tab.keyboard.press("p")
    tab.wait_for_selector("body[data-snapshot='0']")
    tab.wait_for_selector("body[data-snapshot='1']")
    tab.keyboard.press("p")


def test_tour_and_words(tab: Any) -> None:
    tab.click("#tour-start")
    seen = []
    for _ in range(5):
        seen.append(tab.inner_text("#tour p"))
        assert tab.locator(".toured").count() == 1
        tab.keyboard.press("Enter")
    assert len({*seen}) == 5 and not tab.is_visible("#tour") and tab.locator(".toured").count() == 0
    tab.click("#tour-start")
    tab.click("#tour-end")
    assert not tab.is_visible("#tour")
    for term in tab.locator("[data-term]").all():
        term.focus()
        words = tab.inner_text("#term")
        assert tab.is_visible("#term") and len(words) > 20 and words != "undefined"
    term.blur()
    assert not tab.is_visible("#term")
    tab.locator("[data-term]").first.hover()
    assert tab.is_visible("#term")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_masked_is_hatched_and_is_not_zero(show: Show, scheme: str) -> None:
    tab = show(scheme=scheme)
    left, top, side, _ = frame(tab)

    def pixels(selector: str) -> Array:
        script = """canvas => {
            const { width, height } = canvas;
            const copy = new OffscreenCanvas(width, height).getContext("2d");
            copy.drawImage(canvas, 0, 0);
            const bytes = Array.from(copy.getImageData(0, 0, width, height).data);
            return [width, btoa(bytes.map(byte => String.fromCharCode(byte)).join(""))];
        }"""
        width, values = tab.eval_on_selector(selector, script)
        return np.frombuffer(base64.b64decode(values), np.uint8).reshape(-1, width, 4)

    def colours(big: Array, q: int, k: int) -> set[tuple[int, ...]]:
        y, x = (int(start + place * side) + 3 for start, place in ((top, q), (left, k)))
        inside = big[y : y + int(side) - 6, x : x + int(side) - 6]
        return set(map(tuple, inside.reshape(-1, 4).tolist()))

    lower = np.tril(np.ones((B, B), bool))
    big, small = pixels("#map"), pixels(".head canvas")
    assert all(len(colours(big, q, k)) == 1 for q in range(B) for k in range(q + 1))
    assert len(colours(big, 2, 6)) >= 2
    assert ((small[..., 3] == 0) == ~lower).all()
    behind = "canvas => getComputedStyle(canvas).backgroundImage"
    assert "repeating-linear-gradient" in tab.eval_on_selector(".head canvas", behind)
    tab.click("[data-stage=scores]")
    assert len(colours(pixels("#map"), 2, 6)) == 1  # before the mask, all are there
    tab.click("[data-stage=weights]")
    tab.locator("#text .token").nth(3).click()
    tab.keyboard.press("h")
    settle(tab)
    tab.keyboard.press("Escape")
    lower[4:, 3] = False
    assert ((pixels(".head canvas")[..., 3] == 0) == ~lower).all()
    assert len(colours(pixels("#map"), 9, 3)) >= 2 and len(colours(pixels("#map"), 3, 3)) == 1


def test_row_scale_says_so(tab: Any) -> None:
    before = picture(tab, ".head canvas")
    assert "the same scale everywhere" in tab.inner_text("[data-shows=weights]")
    tab.check("#own-scale")
    legend = tab.inner_text("[data-shows=weights]")
    assert "relative to the largest in its row" in legend and "row's largest" in legend
    assert picture(tab, ".head canvas") != before


def test_the_lens_reads_a_cell(tab: Any, report: Report) -> None:
    tab.locator("#lens tbody tr").nth(2).locator("td").nth(4).hover()
    said = tab.inner_text("#lens-readout")
    assert said.startswith(f"after layer 1, token 4 '{TEXT[4]}'") and "came next: '␣'" in said
    model = report.models[3]
    p = model.unembed(capture(model, ids_of(TEXT)).residual[2])[0, 4].softmax(-1).detach()
    true = [*p.topk(3).values.tolist(), float(p[CHARS.index(" ")])]
    assert numbers(said) == pytest.approx(true, abs=6e-4)


def test_hostile_text_stays_text(show: Show, report: Report) -> None:
    data = json.loads(json.dumps(report.data))
    data["run"]["name"] = data["run"]["config"]["data"]["source"] = HOSTILE
    data["vocab"][3] = "\u202e"
    data["checks"][0]["where"] = HOSTILE
    tab = show(data)
    assert tab.inner_text("#name") == HOSTILE and HOSTILE in tab.inner_text("#lead")
    tab.click("#config summary")
    assert HOSTILE in tab.inner_text("#config")
    type_text(tab, HOSTILE)
    assert "".join(tab.locator("#text .token").all_inner_texts()) == HOSTILE.replace(" ", "␣")
    assert tab.locator("img").count() == 0
    assert tab.locator("script").count() == 2 + len(report.weights)


def test_odd_characters_are_visible(tab: Any) -> None:
    odd = " \t\x07\x7f\u0301\u202e\u2028北🎉"
    type_text(tab, f"a{odd}")
    expected = "a ␣ ⇥ ␇ ␡ ◌\u0301 U+202E U+2028 北 🎉"
    assert tab.locator("#text .token").all_inner_texts() == expected.split(" ")


def test_weights_in_8_bits(show: Show, report: Report) -> None:
    """They are what PyTorch rounds them to."""
    data = json.loads(json.dumps(report.data))
    packed, rounded = pack_weights(report.exact.state_dict(), True)
    model = copy.deepcopy(report.exact)
    model.load_state_dict(rounded)
    with torch.no_grad():
        logits = model.double()(ids_of(TEXT))[0].numpy()
    data["snapshots"][-1] |= {"eight_bits": True, "logits": pack(logits)}
    tab = show(data, [*report.weights[:-1], packed])
    assert "Weights rounded to 8 bits" in tab.inner_text("#equality")
    assert np.allclose(ask(tab, f"logits('{TEXT}')"), logits, atol=1e-4)


def test_one_snapshot(show: Show, report: Report) -> None:
    data = {**report.data, "snapshots": report.data["snapshots"][-1:], "checks": []}
    tab = show(data, report.weights[-1:])
    assert not tab.is_visible("#slider") and tab.is_visible("text=--train.snapshots")
    assert not tab.is_visible("#formation") and not tab.is_visible("#play")


def test_bytes(workplace: Path, show: Show) -> None:
    """Any text is known, and what is no UTF-8 is kept."""
    Path("text.txt").write_text("caf\u00e9 \u5317 " * 90)
    make_run(Path("runs/bytes"), None, "text.txt")
    assert study.main(["report", "--prompt=caf\u00e9 \u5317", "--sequences=2"]) == 0
    given = taken_apart(Path("runs/bytes/report.html").read_text())
    tab = show(*given)
    assert tab.input_value("#typed") == "caf\u00e9 \u5317"
    assert tab.locator("#text .token").all_inner_texts() == [
        *"caf", "\\xc3", "\\xa9", "␣", "\\xe5", "\\x8c", "\\x97",
    ]  # fmt: skip
    type_text(tab, "\u00e9\U0001f389")
    assert tab.locator("#text .token").count() == 6
    tab.click("#write-line")  # random bytes
    settle(tab)
    before = tab.locator("#text .token").all_inner_texts()
    tab.focus("#typed")
    tab.keyboard.press("Control+End")
    tab.keyboard.type("!")
    settle(tab)
    assert tab.locator("#text .token").all_inner_texts() == [*before, "!"]
    while not (address := str(tab.evaluate("location.hash"))).endswith("%21"):
        tab.wait_for_timeout(50)
    again = show(*given, address=address)
    assert again.locator("#text .token").all_inner_texts() == [*before, "!"]


def test_sub_words(workplace: Path, show: Show) -> None:
    """The page cuts a text into the tokens that the tokenizer does, and an address keeps them."""
    odd = [
        "the cat's hat, they'll 've 42nd  x", "naïve 😀\u200d \u0301é\u00a0\u3000 b",
        "a\n\n\n  b \t\r\n", "<|end|> the\x85 the\ufeff the", "the" * 9,
    ]  # fmt: skip
    tokenizer = BPETokenizer(train_bpe(["the cat that sat thereby 've said é 42"] * 9, 290).merges)
    tokenizer = BPETokenizer(tokenizer.merges, ("<|end|>",))
    Path("text.txt").write_text("the cat that sat " * 400)
    make_run(Path("runs/bpe"), None, "text.txt", tokenizer, block_size=40)
    assert study.main(["report", "--prompt=the cat\u00e9", "--sequences=2"]) == 0
    given = taken_apart(Path("runs/bpe/report.html").read_text())
    tab = show(*given)
    shown = tab.locator("#text .token").all_inner_texts()
    assert shown == [visible(tokenizer.labels[i]) for i in tokenizer.encode("the cat\u00e9")]
    for text in odd:
        type_text(tab, text)
        ids = ".".join(map(str, tokenizer.encode(text.replace("\r\n", "\n")).tolist()))
        wait_for_address(tab, f"text={ids}")
    tab.click("#write-line")
    settle(tab)
    before = tab.locator("#text .token").all_inner_texts()
    ids = ".".join(map(str, tokenizer.encode(text.replace("\r\n", "\n")).tolist()))
    again = show(*given, address=wait_for_address(tab, f"text={ids}."))  # and what was written
    assert again.locator("#text .token").all_inner_texts() == before


@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (1280, "light"), (1920, "light")])
def test_it_fits_the_screen(show: Show, report: Report, width: int, scheme: str) -> None:
    data = json.loads(json.dumps(report.data))
    data["run"]["name"] = data["run"]["config"]["data"]["source"] = "a_name_without_a_blank" * 4
    tab = show(data, width=width, scheme=scheme)
    for summary in ("#config summary", "#checks summary", "#glossary summary"):
        tab.click(summary)
    tab.locator(".bar-button").first.click()
    switch(tab, "L0H1")
    tab.locator("#text .token").nth(2).click()
    tab.click("#fill")
    tab.wait_for_selector("body[data-filled]")
    assert tab.evaluate("document.scrollingElement.scrollWidth <= innerWidth")
    light = tab.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", light))) > 380) == (scheme == "light")


def test_a_map_that_is_too_fine_to_label_has_a_close_up(workplace: Path, show: Show) -> None:
    Path("text.txt").write_text("to be or not " * 400)
    run = make_run(Path("runs/long"), CHARS, "text.txt", block_size=96)
    assert study.main(["report", str(run), "--sequences=2"]) == 0
    tab = show(*taken_apart((run / "report.html").read_text()))
    assert not tab.is_visible("#close-up")
    said = point_at(tab, 70, 40)
    assert tab.is_visible("#close-up") and said.startswith("q 70 ")
    column, row = (int(tab.get_attribute("#window", f"data-{name}")) for name in ("column", "row"))
    assert (column, row) == (30, 60) and frame(tab, "#window")[2] > 10


def test_its_data_cannot_end_its_script() -> None:
    given = {"<&>": ["\u2028\u2029\ud800", HOSTILE, float("inf"), 1.5, {"{{script}}": None}]}
    text = to_json(given)
    assert text.isascii() and not set("<>&") & set(text)
    assert json.loads(text) == json.loads(json.dumps(given).replace("Infinity", "null"))
    assert page(given, [b"\xff"]).count("<script") == 3
    assert page(given, [b"\xff"]) == page(given, [b"\xff"])
