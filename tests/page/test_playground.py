"""The playground in a browser: it trains a GPT by itself, and what it saves opens in PyTorch."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import page.playground
from common.errors import UserError
from configs.load import read_config
from data.batches import TaskBatches
from data.tasks import TASKS
from page.html import make_playground
from tests.page.conftest import altered, settle, wait_for_address
from tests.page.test_page import point_at
from training.checkpoint import open_run

Open = Callable[..., Any]
TINY = "?n_layer=1&n_embd=16&batch_size=4"


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "playground.html"
    path.write_text(make_playground(), encoding="utf-8")
    return path


@pytest.fixture
def play(file: Path, window: tuple[Any, list[str]]) -> Iterator[Open]:
    """Yield a function that opens the page; fail if it logs, or requests more than its workers."""
    tab, events = window

    def open_page(address: str = "", page: Path = file) -> Any:
        tab.goto("about:blank")
        tab.goto(page.as_uri() + address)
        return settle(tab)

    tab.set_viewport_size({"width": 1280, "height": 720})
    tab.mouse.move(0, 0)
    events.clear()
    yield open_page
    tab.goto("about:blank")
    assert all(event.startswith(("blob:", "file:")) for event in events)


def train(tab: Any, steps: int) -> dict[str, Any]:
    return dict(settle(tab).evaluate("(steps) => glassgpt.train(steps)", steps))


def logits(tab: Any, text: str, step: int) -> Any:
    call = f"JSON.stringify(glassgpt.logits({json.dumps(text)}, {{step: {step}}}))"
    return np.array(json.loads(tab.evaluate(call)))


def steps_of(tab: Any) -> list[int]:
    return list(tab.evaluate("glassgpt.steps"))


def test_a_model_learns_while_one_watches(play: Open) -> None:
    tab = play()
    before = logits(tab, "abcabc", 0)
    assert "3.466" in tab.inner_text("#step") and steps_of(tab) == [0]
    found = train(tab, 70)
    assert found["step"] == 70 and found["loss"] < np.log(32) - 0.1
    assert 0.05 < found["accuracy"] < 1
    moment = settle(tab).inner_text("#moment")
    assert f"step 70 · loss, all tokens: {found['loss']:.3f}" in moment
    assert "below " in tab.locator("#loss").inner_html()
    steps = steps_of(tab)
    assert steps[0] == 0 and steps[-1] == 70 and tab.locator("#loss .dot").count() == len(steps)
    # Earlier snapshots keep their weights, in whichever order they are read.
    middle = steps[len(steps) // 2]
    read = {step: logits(tab, "abcabc", step) for step in (70, middle, 0)}
    assert np.array_equal(read[0], before) and not np.array_equal(read[middle], read[70])
    assert np.array_equal(logits(tab, "abcabc", middle), read[middle])
    tab.fill("#slider", "0")
    assert "step 0" in settle(tab).inner_text("#moment")
    tab.click("#show-scores")
    scores = settle(tab).inner_text("#scores")
    assert "weight on match" in scores and "ablation" not in scores
    assert "PyTorch" not in tab.inner_text("body")


def test_heads_are_ablated_while_it_trains(play: Open) -> None:
    tab = play(f"{TINY}&pace=5&max_steps=3")
    tab.select_option("#set-pace", "1")
    assert "pace=1" in tab.url
    tab.click("#train")
    tab.wait_for_function("() => glassgpt.steps.length > 1")
    assert tab.inner_text("#train") == "Pause" and tab.is_disabled("#train + .controls button")
    tab.click("#ablate")
    tab.wait_for_selector(".pick.off")
    note = tab.inner_text("#training-note")
    assert note == "Edits affect neither training nor the scores of heads."
    tab.wait_for_function("() => glassgpt.steps.length > 2")
    assert "ablated" in tab.inner_text("#edit-list")
    tab.click("#train")
    tab.wait_for_selector("text=Train >> visible=true")
    tab.select_option("#set-pace", "fastest")
    settle(tab).click("#undo")
    for steps in (3, 6):  # Train ends at max_steps, and goes on from there
        tab.fill("#slider", "0")  # Train shows the newest step again
        settle(tab).click("#train")
        note = f"Trained for {steps} steps. Train goes on from there."
        tab.wait_for_selector(f"#training-note:has-text('{note}')")
        assert steps_of(tab)[-1] == steps and f"step {steps} " in settle(tab).inner_text("#moment")


def test_every_task_can_be_chosen(play: Open) -> None:
    """The size is then the task's own."""
    tab = play(f"{TINY}&pace=5&workers=2")
    tasks = {*tab.locator("#set-task option").all_inner_texts()}
    assert tasks == {*TASKS} - {"repeat_fixed"} | {"text"}
    with tab.expect_navigation():
        tab.select_option("#set-n_head", "4")
    assert "?n_layer=1&n_head=4&n_embd=16" in settle(tab).url and tab.locator(".pick").count() == 4
    train(tab, 1)
    tab.evaluate("window.confirm = () => false")
    tab.select_option("#set-task", "modular")  # the trained model stays
    assert tab.input_value("#set-task") == "repeat" and steps_of(tab) == [0, 1]
    tab.evaluate("window.confirm = () => true")
    with tab.expect_navigation():
        tab.select_option("#set-task", "modular")
    assert settle(tab).url.endswith("?task=modular&pace=5&workers=2")
    assert tab.input_value("#set-n_embd") == "96" and "97" in tab.inner_text("#source")
    # In a sequence of a few tokens, uniform attention has high scores.
    labels = tab.locator(".pick i").all_inner_texts()
    assert len(labels) == 4 and not any(labels)


def test_keys_move_only_with_rotary_positions(play: Open) -> None:
    """They can always be hidden. The text of the task wrap begins with a newline."""
    for positions, reason in (("none", "Keys cannot be moved: positions are none"), ("rotary", "")):
        tab = play(f"{TINY}&task=wrap&positions={positions}")
        tab.click("#text .token >> nth=0")
        assert settle(tab).is_disabled("#key-by") == bool(reason)
        assert tab.is_visible("#key-note") == bool(reason)
        assert reason in tab.inner_text("#head-section")
        tab.click("#steps button >> nth=2")
        assert settle(tab).locator("#step input").count() == (not reason)  # before the rotation
        tab.click("#hide-key")
        assert (
            settle(tab)
            .inner_text("#edit-list")
            .startswith("The key of token 0 '↵' is hidden from L0H")
        )


def test_kinds_of_attention_are_settings(play: Open, tmp_path: Path) -> None:
    """Without MLPs, no part of the page has them. What is outside a window is masked. The weights
    are those of a GPT."""
    text, kinds = "abcdefabcdef", "n_kv_head=1&mlp_ratio=0&window=4"
    tab = play(f"?n_layer=2&n_embd=16&batch_size=4&{kinds}#text={text}&edit=L0.mlp&mlp=0")
    train(tab, 4)
    assert tab.is_visible("#map") and not tab.locator(".mlp, #edit-list p").count()
    settle(tab).click(".end >> nth=1")
    assert tab.locator("#votes th").all_inner_texts() == [
        *("", "H0", "H1", "L0", "L1", "embedding", "sum")
    ]
    tab.click("#show-circuit")
    rows = settle(tab).locator("#circuit-section .rank").all_text_contents()
    assert rows == ["embedding", "L0 heads", "L1 heads", "logit"]
    nodes, labels = (
        tab.locator(f".circuit {each}").evaluate_all(
            "all => all.map((each) => each.attributes.y.value)"
        )
        for each in (".node text", ".rank")
    )
    assert {*nodes} <= {*labels[:-1]}
    for key in ("lens", "patch", "scores", "alone"):
        settle(tab).click(f"#show-{key}")
    for q, k, says in ((4, 0, "masked (the window is 4)"), (3, 0, "weight")):
        point_at(settle(tab), q, k)
        assert says in tab.inner_text("#readout")
    tab.click("#steps button >> nth=2")
    tab.hover("#text .token >> nth=9")
    assert tab.locator("#text .masked").count() == 6 + 2
    assert "sum, 4 keys" in settle(tab).inner_text("#step")
    with settle(tab).expect_download() as download:
        tab.click("text=Download weights")
    download.value.save_as(tmp_path / "last.safetensors")
    saved = open_run(tmp_path)
    ids = torch.from_numpy(saved.tokenizer.encode(text).astype(int))[None]
    expected = saved.model()(ids)[0].detach().numpy()
    assert np.abs(logits(tab, text, 4) - expected).max() < 1e-5
    tab.click("text=Copy link")
    assert kinds in tab.inner_text("#setting output")


def test_task_without_norms_has_no_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(page.playground.SETTINGS["repeat"]["model"], "norm", "none")
    with pytest.raises(UserError, match=r"^the page does not support model.norm none of task rep"):
        make_playground()


def test_wrong_address_is_a_line_for_each_mistake(play: Open) -> None:
    tab = play("?task=nothing&n_layer=9&seed=0.5&n_head=4&n_kv_head=8&dropout=0.1&norm=none")
    lines = tab.locator("#notices .trouble").all_inner_texts()
    assert [line.split(" cannot be ")[0] for line in lines[:3]] == [
        f"In the address, {name}" for name in ("task", "n_layer", "seed")
    ]
    assert lines[1].endswith("cannot be 9, but 1, 2, 3, 4. The default is used.")
    for line, name in zip(lines[3:5], ("dropout", "norm"), strict=True):
        assert f"{name} is not a setting of this page" in line
    assert len(lines) == 6 and "n_kv_head cannot be 8 with n_head 4" in lines[5]
    assert tab.locator(".pick").count() == 8


SETTINGS = "task=flipflop&n_embd=16&n_head=1&workers=2"


def test_an_address_is_a_run(play: Open) -> None:
    """The same address trains the same model bitwise, also from Copy link; another seed, another
    one."""

    def run(tab: Any) -> list[Any]:
        return [train(tab, 6), logits(tab, "w0r0", 6).tolist()]

    tab = play(f"?{SETTINGS}&seed=7")
    first = run(tab)
    tab.click("text=Copy link")
    link = tab.inner_text("#setting output").split()[0]
    assert "seed=7" in link
    again, other = run(play("?" + link.partition("?")[2])), run(play(f"?{SETTINGS}&seed=8"))
    assert first == again and first[0]["loss"] != other[0]["loss"]


def test_learning_rates_of_the_address_are_used_from_the_first_step(play: Open) -> None:
    """Each updates its own weights, and both at 0 none."""
    rates = [(0, 0), (0, 0.02), (0.02, 0)]
    found = []
    for adamw, muon in rates:
        tab = play(f"?{SETTINGS}&learning_rate={adamw}&muon_learning_rate={muon}")
        before = logits(tab, "w0r0", 0)
        train(tab, 2)
        found.append(np.abs(logits(tab, "w0r0", 2) - before).max())
    assert found[0] == 0 < min(found[1:])


def test_training_goes_on_after_max_steps(play: Open) -> None:
    """The learning rates do not decay to 0 there."""
    tab = play(f"?{SETTINGS}&max_steps=11")  # more than the warmup
    train(tab, 11)
    train(tab, 1)
    assert not np.array_equal(logits(tab, "w0r0", 11), logits(tab, "w0r0", 12))


def test_downloads_are_what_is_on_show(play: Open, tmp_path: Path) -> None:
    """Weights of the snapshot that the slider shows; a config that train.py reads."""
    tab = play("?task=modular&n_embd=16&ngrams=2&optimizer=adamw&weight_decay=0.2&seed=3")
    loss, text = train(tab, 3)["loss"], "1+2="
    for step in (3, 0):
        tab.fill("#slider", str(steps_of(tab).index(step)))
        with settle(tab).expect_download() as download:
            tab.click("text=Download weights")
        download.value.save_as(tmp_path / "last.safetensors")
        assert f"The weights of step {step}, " in tab.inner_text("#setting output")
        saved = open_run(tmp_path)
        ids = torch.from_numpy(saved.tokenizer.encode(text).astype(int))[None]
        expected = saved.model()(ids)[0].detach().numpy()
        assert np.abs(logits(tab, text, step) - expected).max() < 1e-5
        assert saved.header.state.step == step
        assert (saved.header.state.best_val_loss == loss) == (step == 3)
    header = saved.header
    with pytest.raises(UserError, match=r"holds weights without .*; use --init_from"):
        saved.check_resume(header.corpus, header.config.train, header.machine)
    assert saved.tokenizer == TaskBatches(header.config.data, 4, 0).tokenizer
    tab.click("text=Copy config")
    config, _, note = tab.inner_text("#setting output").rpartition("\n")
    assert note.startswith("Save this as mine.yaml")
    (tmp_path / "mine.yaml").write_text(config)
    assert read_config({}, str(tmp_path / "mine.yaml")) == header.config


def test_sums_are_typed_and_read_as_numbers(play: Open) -> None:
    """A space at the end is no error, and typing goes on after it."""
    tab = play("?task=modular&n_embd=16")
    field, spans = tab.locator("#typed"), tab.locator("#text .token")
    assert field.input_value() == tab.inner_text("#text").strip() and spans.count() == 4
    field.fill("")
    for typed in ("63 ", "+", " 35 ", "= "):
        field.press_sequentially(typed)
        assert "never saw" not in settle(tab).inner_text("#text-state")
    assert field.input_value() == "63 + 35 = "
    assert spans.all_inner_texts() == ["63", "+", "35", "="]
    address = wait_for_address(tab, "35+%3D")
    ahead = tab.locator("#continuation .token").all_inner_texts()
    assert tab.inner_text("#continuation").split() == ahead
    tab.click("#write-one")
    assert settle(tab).input_value("#typed") == f"63 + 35 = {ahead[0]}"
    field.fill("63+97=")
    said = settle(tab).inner_text("#text-state")
    assert said.startswith("The model never saw '97' in training, and skips it.")
    assert spans.all_inner_texts() == ["63", "+", "97", "="]
    tab.click("#text .token >> nth=1")
    likely = tab.inner_text(".write >> nth=0")
    tab.click(".write >> nth=0")
    assert settle(tab).input_value("#typed") == f"63 + {likely}"
    field.fill("x")
    assert "knows 0 1 2 3 " in settle(tab).inner_text("#text-state")
    assert play(f"?task=modular{address}").input_value("#typed") == "63 + 35 ="


def test_pasted_text_is_trained_on(play: Open) -> None:
    tab = play("?task=text&n_layer=1&n_embd=16")
    assert len(tab.evaluate("glassgpt.vocab")) > 60  # of the page's script
    train(tab, 1)
    tab.fill("#pasted", "too short")
    tab.click("text=Use this text")
    assert tab.inner_text("#setting output") == "The text needs 50 characters or more."
    for text in ("\U0001f408\u0301" * 30, "the cat sat on the mat. " * 30):
        tab.fill("#pasted", text)
        tab.evaluate("window.confirm = () => false")
        tab.click("text=Use this text")  # the trained model stays
        assert steps_of(tab) == [0, 1]
        tab.evaluate("window.confirm = () => true")
        with tab.expect_navigation():
            tab.click("text=Use this text")
        assert settle(tab).input_value("#pasted") == text
        assert np.isfinite(train(tab, 1)["loss"])
    assert "".join(tab.evaluate("glassgpt.vocab")) == " .acehmnost"
    assert tab.input_value("#set-n_layer") == "1"
    found = train(tab, 20)
    assert found["loss"] < np.log(11) - 0.3 and found["accuracy"] is None
    assert "below " in tab.locator("#loss").inner_html()


def test_loss_that_is_not_finite_stops(play: Open) -> None:
    """It keeps weights with a finite loss, also if it trains on."""
    tab = play(TINY + "&workers=2&muon_learning_rate=1e30&learning_rate=1e30")
    for _ in range(2):
        found = train(tab, 20)
        note = settle(tab).inner_text("#training-note")
        assert note.startswith(f"Stopped at step {found['step'] + 1}: loss ")
    assert np.isfinite(logits(tab, "abc", found["step"])).all()


def test_snapshots_thin_out(play: Open, file: Path, tmp_path: Path) -> None:
    few = tmp_path / "few.html"
    few.write_text(altered(file.read_text(encoding="utf-8"), "MOST = 100", "MOST = 20"), "utf-8")
    tab = play(TINY + "&n_head=1&batch_size=1", few)
    steps_alone = """async (count) => {
      for (let i = 0; i < count; i++) await glassgpt.train(1);
    }"""
    tab.evaluate(steps_alone, 19)
    tab.fill("#slider", "18")
    assert "step 18" in settle(tab).inner_text("#moment")
    tab.evaluate(steps_alone, 8)
    steps = steps_of(tab)
    assert len(steps) == 20 and steps[0] == 0 and steps[-1] == 27 and steps == sorted(steps)
    gaps = np.diff(steps)
    assert gaps[:5].sum() < gaps[-5:].sum()  # closer together at the beginning
    assert "step 18" in settle(tab).inner_text("#moment")  # which stays on show
    assert int(tab.input_value("#slider")) == steps.index(18) < 18
