"""The report page in a real browser: it shows what numpy says, and needs nothing but itself."""

import base64
import gzip
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from lens.report.page import pack, page, to_json

Array = npt.NDArray[Any]
Show = Callable[..., Any]  # data -> an open page; playwright may be absent, and so its types
TEXT = "to be,\nor not to be"
HOSTILE = "</script><img src=x onerror=alert(1)>"
NAMES = ["L0H0", "L0H1", "L0H2", "L1H0", "L1H1", "L1H2"]
LAST = 2


@dataclass
class Example:
    """What the page is given, and the same as plain arrays; S snapshots, N = L * H heads."""

    data: dict[str, Any]
    scores: Array  # (N, T, T), of the last snapshot, before the mask
    weights: Array  # (S, N, T, T)
    surprisal: Array  # (S, T)
    p: Array  # (S, T, 5)
    induction: Array  # (S, N)
    lens_p: Array  # (L + 1, T, 3)


def example(
    text: str = TEXT, L: int = 2, H: int = 3, D: int = 8, S: int = 3, note: str = "plain"
) -> Example:
    random = np.random.default_rng(0)
    N, T, unit = L * H, len(text), 2e-4
    vocab = sorted({*text, "\t", "é", "北", note})
    q, k = random.integers(-9000, 9000, (2, N, T, D)).astype(np.int16)
    scores = (q * unit) @ (k * unit).transpose(0, 2, 1) / np.sqrt(D)
    causal = np.tril(np.ones((T, T), bool))
    strength = np.linspace(1, 0.2, S)[::-1]  # earlier in training, attention is nearer to even
    exps = [np.exp(np.where(causal, scores * s, -np.inf)) for s in strength]
    weights = np.stack([e / e.sum(-1, keepdims=True) for e in exps])
    surprisal = np.hstack([np.full((S, 1), np.nan), random.uniform(0.1, 3, (S, T - 1))])
    p = -np.sort(-random.dirichlet(np.ones(8), (S, T)))[..., :5]
    induction = random.uniform(0, 1, (S, N))
    lens_p = random.uniform(0, 1, (L + 1, T, 3))

    def ids(*shape: int) -> str:
        return pack(random.integers(len(vocab), size=shape).astype(np.uint16))

    snapshots = [
        {
            "step": 100 * s, "val_loss": 3.0 - s, "prompt_loss": 3.1 - s,
            "attention": pack(np.round(255 * np.sqrt(weights[s][:, causal])).astype(np.uint8)),
            "surprisal": pack(surprisal[s].astype(np.float32)),
            "candidates": ids(T, 5), "candidate_p": pack(p[s].astype(np.float32)),
            "scores": {"induction": induction[s].tolist(), "previous": [0.5] * N},
        }
        for s in range(S)
    ]  # fmt: skip
    about = {"formula": "mean weight on the one after", "source": "Olsson et al. 2022"}
    removed = {kind: random.normal(0, 0.1, N).tolist() for kind in ("zero", "mean")}
    config = {"data": {"source": note, "none": None}, "model": {"n_layer": L}, "train": {}}
    data = {
        "run": {"name": note, "step": 100 * (S - 1), "val_loss": 1.0, "unit": "char",
                "parameters": 814208, "about": f"{L} layers, {H} heads", "config": config,
                "made": "2026-11-21", "torch": "2.13"},
        "L": L, "H": H, "T": T, "D": D, "tokens": list(text), "vocab": vocab,
        "snapshots": snapshots,
        "score_info": [{"key": "induction", "name": "induction", "uniform": 0.11, **about},
                       {"key": "previous", "name": "previous", "uniform": [0.2] * N, **about}],
        "ablation": {**removed, "zero_error": [0.01] * N, "mean_error": [0.02] * N,
                     "loss": 1.0, "tokens": 4096},
        "sequences": 32, "copying": {"period": 20, "first": 4.2, "second": 0.5},
        "q": pack(q), "k": pack(k), "q_scale": [unit] * N, "k_scale": [unit] * N,
        "lens": {"names": ["embedding", *(f"after layer {i}" for i in range(L))],
                 "loss": [3.0] * (L + 1), "ids": ids(L + 1, T, 3),
                 "p": pack(lens_p.astype(np.float32)),
                 "p_true": pack(lens_p[..., 0].astype(np.float32))},
        "checks": [{"name": "causal", "dtype": "float64", "error": 0.0, "tolerance": 1e-12,
                    "verdict": "passed", "where": "tests/model"},
                   {"name": "nanoGPT", "dtype": "float32", "error": None, "tolerance": None,
                    "verdict": "not comparable: rotary", "where": note}],
        "curve": {"step": [0, 50, 100], "val_loss": [3.0, 2.0, 1.0]},
    }  # fmt: skip
    return Example(data, scores, weights, surprisal, p, induction, lens_p)


PLAIN = example()
SCORES, WEIGHTS, ABLATION = PLAIN.scores, PLAIN.weights, PLAIN.data["ablation"]


@pytest.fixture
def show(window: tuple[Any, list[str]], tmp_path: Path) -> Iterator[Show]:
    """Open a page from disk. Whatever it says or asks for is a failure."""
    file, (tab, trouble) = tmp_path / "report.html", window

    def open_page(data: dict[str, Any], width: int = 1280, scheme: str = "light") -> Any:
        file.write_text(page(data), encoding="utf-8")
        tab.set_viewport_size({"width": width, "height": 900})
        tab.emulate_media(color_scheme=scheme)
        tab.mouse.move(0, 0)
        tab.goto(file.as_uri())
        tab.wait_for_selector("body[data-ready][data-lens]")
        return tab

    trouble.clear()
    yield open_page
    tab.goto("about:blank")  # nothing of this page goes on under the next test
    assert set(trouble) <= {file.as_uri()}


@pytest.fixture
def tab(show: Show) -> Any:
    """The page of `PLAIN`."""
    return show(PLAIN.data)


def numbers(text: str) -> list[float]:
    return [float(found) for found in re.findall(r"-?\d+\.\d+", text)]


def frame(tab: Any) -> tuple[float, float]:
    """Where the cells of the big map begin, and how large they are."""
    canvas = tab.locator("#map")
    return float(canvas.get_attribute("data-margin")), float(canvas.get_attribute("data-side"))


def point_at(tab: Any, q: int, k: int) -> str:
    """Put the pointer on a cell of the big map; what the page says about it."""
    margin, side = frame(tab)
    tab.hover("#map", position={"x": margin + (k + 0.5) * side, "y": margin + (q + 0.5) * side})
    return str(tab.inner_text("#readout"))


def go_to(tab: Any, snapshot: int) -> None:
    tab.fill("#slider", str(snapshot))
    tab.wait_for_selector(f"body[data-snapshot='{snapshot}']")


def select(tab: Any, head: int) -> None:
    tab.get_by_role("button", name=f"layer {head // 3} head {head % 3},").click()


def selected(tab: Any) -> str:
    return str(tab.inner_text(".head[aria-pressed=true] b"))


def picture(tab: Any, selector: str) -> str:
    return str(tab.eval_on_selector(selector, "canvas => canvas.toDataURL()"))


def test_opens_alone_and_says_what_it_shows(tab: Any) -> None:
    assert tab.title() == "plain · glassgpt"
    result = "step 200 · validation loss 1.000 nats/char · 814,208 parameters"
    assert tab.inner_text("#result") == result
    assert tab.inner_text("#checks summary") == "1 of 1 checks passed, 1 not comparable"
    assert "Attention weight is not importance" in tab.inner_text(".caution")
    assert tab.evaluate("[typeof state, typeof now, typeof snapshots]") == ["undefined"] * 3


def test_cells_say_weight_and_score(tab: Any) -> None:
    for head, q, k in ((0, 5, 1), (4, 18, 0), (5, 9, 7)):
        select(tab, head)
        said = point_at(tab, q, k)
        place = f"q {q} '{TEXT[q]}' → k {k} '{TEXT[k]}': weight"
        assert said.startswith(place.replace("' '", "'·'"))
        true = [WEIGHTS[LAST, head, q, k], SCORES[head, q, k]]
        assert numbers(said) == pytest.approx(true, abs=6e-4)
    assert "masked" in point_at(tab, 3, 8) and not numbers(tab.inner_text("#readout"))


def test_stages_from_scores_to_weights(tab: Any) -> None:
    select(tab, 1)
    tab.click("[data-stage=scores]")
    assert numbers(point_at(tab, 3, 8)) == pytest.approx([SCORES[1, 3, 8]], abs=6e-4)
    limit = np.abs(SCORES[1]).max()
    legend = tab.inner_text("[data-shows=stage]")
    assert "before the mask" in legend and f"from -{limit:.2f} to {limit:.2f}" in legend
    unmasked = picture(tab, "#map")
    tab.click("[data-stage=masked]")
    assert "\u2212∞" in tab.inner_text("[data-shows=stage]") and picture(tab, "#map") != unmasked
    point_at(tab, 12, 0)
    weights, scores = WEIGHTS[LAST, 1, 12], SCORES[1, 12]
    for line, key in zip(range(1, 6), np.argsort(-weights), strict=False):
        said = numbers(tab.locator("#worked tr").nth(line).inner_text())
        true = [scores[key], np.exp(scores[key] - scores[:13].max()), weights[key]]
        assert said == pytest.approx(true, abs=6e-4)


def test_characters_say_surprisal_and_what_is_expected_next(tab: Any) -> None:
    go_to(tab, 1)
    select(tab, 4)
    tab.locator(".token").nth(9).hover()
    own, after = PLAIN.surprisal[1, 9:11]
    true = [own, np.exp(-own), np.exp(-after), *PLAIN.p[1, 9]]
    assert numbers(tab.inner_text("#next")) == pytest.approx(true, abs=6e-4)
    tokens = tab.locator(".token")
    masked = tokens.evaluate_all("spans => spans.map(span => span.matches('.masked'))")
    assert masked == [t > 9 for t in range(len(TEXT))]
    colours = tokens.evaluate_all("spans => spans.map(span => span.style.backgroundColor)")
    light = [sum(map(int, re.findall(r"\d+", colour))) for colour in colours[:10]]
    assert (np.argsort(light) == np.argsort(-WEIGHTS[1, 4, 9, :10])).all()  # more is darker
    tab.hover("h1")
    assert tab.locator(".token.masked").count() == 0


def test_click_selects_a_head(tab: Any) -> None:
    assert selected(tab) == NAMES[PLAIN.induction[LAST].argmax()]
    for head in (0, 5):
        before = picture(tab, "#map")
        select(tab, head)
        assert selected(tab) == NAMES[head] in tab.inner_text("#head-title")
        assert picture(tab, "#map") != before
        lines = [numbers(line) for line in tab.locator("#scores .number").all_inner_texts()]
        zero, mean = (ABLATION[kind][head] for kind in ("zero", "mean"))
        true = [PLAIN.induction[LAST, head], 0.11, 0.5, 0.2, zero, 0.01, mean, 0.02]
        assert [each for line in lines for each in line] == pytest.approx(true, abs=6e-4)


def test_training_moves_maps_and_scores(tab: Any) -> None:
    select(tab, 2)
    seen = set()
    for s in range(3):
        go_to(tab, s)
        root = np.sqrt(WEIGHTS[s, 2, 15, 3])  # this is what is kept in 8 bits
        assert numbers(point_at(tab, 15, 3))[0] == pytest.approx(root**2, abs=root / 255 + 6e-4)
        captions = tab.locator(".head > span > span").all_inner_texts()
        assert [float(text) for text in captions] == pytest.approx(PLAIN.induction[s], abs=6e-3)
        assert f"step {100 * s} · 32 validation sequences {3 - s}.000" in tab.inner_text("#moment")
        assert tab.is_enabled("[data-stage=scores]") == (s == LAST)
        seen |= {picture(tab, "#map"), picture(tab, ".head canvas")}
    assert len(seen) == 6
    assert tab.locator("#formation polyline").count() == 6
    tab.click("#loss", position={"x": 4, "y": 10})
    tab.wait_for_selector("body[data-snapshot='0']")


def test_sorts_by_any_score(tab: Any) -> None:
    tab.select_option("#order", "score")
    for key, values in (("induction", PLAIN.induction[LAST]), ("ablation mean", ABLATION["mean"])):
        tab.select_option("#measure", key)
        wanted = [NAMES[head] for head in np.argsort(-np.array(values))]
        assert tab.locator(".head b").all_inner_texts() == wanted
    tab.select_option("#order", "layers")
    assert tab.locator(".head b").all_inner_texts() == NAMES


def test_keys(tab: Any) -> None:
    select(tab, 0)
    for key, then in (("Right", 1), ("Down", 4), ("Left", 3), ("Left", 3), ("Up", 0), ("Up", 0)):
        tab.keyboard.press(f"Arrow{key}")
        assert selected(tab) == NAMES[then]
    for key, snapshot in (("[", 1), (",", 0), ("]", 1), (".", 2)):
        tab.keyboard.press(key)
        tab.wait_for_selector(f"body[data-snapshot='{snapshot}']")
    for stage in ("scores", "masked", "weights"):
        tab.keyboard.press("s")
        assert tab.get_attribute(f"[data-stage={stage}]", "aria-pressed") == "true"
    tab.keyboard.press("n")
    assert tab.is_checked("#own-scale")
    tab.keyboard.press("?")
    assert tab.is_visible("#keys")
    tab.keyboard.press("Escape")
    tab.focus(".token[tabindex='0']")
    tab.keyboard.press("ArrowRight")
    tab.keyboard.press("Enter")
    assert tab.inner_text("#readout").startswith("q 1 ") and selected(tab) == "L0H0"
    tab.keyboard.press("Escape")
    assert tab.inner_text("#readout").startswith("Point at")
    tab.keyboard.press("p")
    tab.wait_for_selector("body[data-snapshot='0']")
    tab.wait_for_selector("body[data-snapshot='1']")


def test_hostile_text_stays_text(show: Show) -> None:
    tab = show(example(HOSTILE, note=HOSTILE).data)
    assert "".join(tab.locator(".token").all_inner_texts()) == HOSTILE.replace(" ", "·")
    assert tab.inner_text("#name") == HOSTILE
    tab.click("#config summary")
    assert HOSTILE in tab.inner_text("#config")
    assert tab.locator("img").count() == 0 and tab.locator("script").count() == 2


def test_blanks_and_odd_characters_are_visible(show: Show) -> None:
    odd = "a \n\t\x07\x7f\u0301\u202e\u2028\ud83d北🎉"
    shown = "a · ↵ ⇥ ␇ ␡ ◌\u0301 U+202E U+2028 U+D83D 北 🎉"
    assert show(example(odd).data).locator(".token").all_inner_texts() == shown.split(" ")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_masked_is_hatched_and_is_not_zero(show: Show, scheme: str) -> None:
    given = example("abcdefgh")
    codes = np.tile(np.tril(np.eye(1, 8, dtype=np.uint8).repeat(8, 0)) * 255, (6, 1, 1))
    given.data["snapshots"][LAST]["attention"] = pack(codes[:, np.tril(np.ones((8, 8), bool))])
    tab = show(given.data, scheme=scheme)
    margin, side = frame(tab)

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
        y, x = (int(margin + place * side) + 3 for place in (q, k))
        inside = big[y : y + int(side) - 6, x : x + int(side) - 6]
        return set(map(tuple, inside.reshape(-1, 4).tolist()))

    big, small = pixels("#map"), pixels(".head canvas")
    (zero,), (one,), hatched = (colours(big, *at) for at in ((7, 3), (7, 0), (2, 6)))
    assert zero != one and zero not in hatched and len(hatched) >= 2
    assert ((small[..., 3] == 0) == ~np.tril(np.ones((8, 8), bool))).all()
    behind = "canvas => getComputedStyle(canvas).backgroundImage"
    assert "repeating-linear-gradient" in tab.eval_on_selector(".head canvas", behind)
    tab.click("[data-stage=scores]")
    assert len(colours(pixels("#map"), 2, 6)) == 1  # before the mask, all are there


def test_row_scale_says_so(tab: Any) -> None:
    before = picture(tab, ".head canvas")
    assert "the same scale everywhere" in tab.inner_text("[data-shows=weights]")
    tab.check("#own-scale")
    legend = tab.inner_text("[data-shows=weights]")
    assert "relative to the largest in its row" in legend and "row's largest" in legend
    assert picture(tab, ".head canvas") != before


def test_lens_and_ablation(tab: Any) -> None:
    tab.locator("#lens tbody tr").nth(2).locator("td").nth(4).hover()
    said = tab.inner_text("#lens-readout")
    assert said.startswith("after layer 1, token 4 'e'") and "came next: ','" in said
    true = [*PLAIN.lens_p[2, 4], PLAIN.lens_p[2, 4, 0]]
    assert numbers(said) == pytest.approx(true, abs=6e-4)
    bars = [numbers(bar) for bar in tab.locator("#ablation .zero").all_inner_texts()]
    zero = sorted(ABLATION["zero"], reverse=True)
    assert np.ravel(bars) == pytest.approx(np.ravel([[z, 0.01] for z in zero]), abs=6e-5)


def test_one_snapshot_and_no_ablation(show: Show) -> None:
    given = example(S=1)
    given.data |= {"ablation": None, "checks": [], "curve": {"step": [], "val_loss": []}}
    given.data["snapshots"][0]["scores"]["induction"][0] = float("nan")
    tab = show(given.data)
    assert not tab.is_visible("#slider") and tab.is_visible("text=--train.snapshots")
    assert "Not measured" in tab.inner_text("#ablation-note") and not tab.is_visible("#formation")
    assert "\u2013" in tab.locator(".head").first.inner_text()


def test_a_large_run_opens_and_fits_the_screen(show: Show) -> None:
    given = example("a long word " * 21, L=6, H=6, D=64, note="a_name_without_a_blank" * 4)
    for scheme, width in (("dark", 390), ("light", 1920)):
        tab = show(given.data, width, scheme)
        assert tab.locator(".head").count() == 36 and "L5H5" in tab.inner_text("#heads")
        tab.click("#config summary")
        tab.click("#checks summary")
        assert tab.evaluate("document.scrollingElement.scrollWidth <= innerWidth")
        light = tab.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (sum(map(int, re.findall(r"\d+", light))) > 380) == (scheme == "light")


def test_the_file_is_the_same_each_time_and_its_data_cannot_end_its_script() -> None:
    array = np.arange(6, dtype=">f4").reshape(2, 3).T
    raw = gzip.decompress(base64.b64decode(pack(array)))
    assert raw == array.astype("<f4").tobytes() and pack(array) == pack(array)
    given = {"<&>": ["\u2028\u2029\ud800", HOSTILE, float("inf"), 1.5, {"{{script}}": None}]}
    text = to_json(given)
    assert text.isascii() and not set("<>&") & set(text)
    assert json.loads(text) == json.loads(json.dumps(given).replace("Infinity", "null"))
    assert page(given).count("<script") == 2 and page(given) == page(given)
