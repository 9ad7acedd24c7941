"""The playground in a browser: it trains a GPT by itself, and what it saves opens in PyTorch."""

import json
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from common.errors import UserError
from configs.load import SECTIONS, read_command_line, read_config
from data.tasks import TASKS
from page.html import make_playground
from tests.page.conftest import settle
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

    def open_page(address: str = "") -> Any:
        tab.goto("about:blank")
        tab.goto(file.as_uri() + address)
        return settle(tab)

    tab.set_viewport_size({"width": 1280, "height": 720})
    tab.mouse.move(0, 0)
    events.clear()
    yield open_page
    tab.goto("about:blank")
    assert {event.partition("?")[0] for event in events if not event.startswith("blob:")} <= {
        file.as_uri()
    }


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
    assert f"step 70 · loss {found['loss']:.3f}" in moment
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
    tab = play(f"{TINY}&pace=5")
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
    reached = train(tab, 2)["step"]
    assert steps_of(tab)[-1] == reached and "ablated" in tab.inner_text("#edit-list")


def test_every_task_can_be_chosen(play: Open) -> None:
    tab = play(f"{TINY}&pace=5&workers=2")
    assert {*tab.locator("#set-task option").all_inner_texts()} == {*TASKS} - {"repeat_fixed"} | {
        "text"
    }
    train(tab, 1)
    tab.evaluate("window.confirm = () => false")
    tab.select_option("#set-task", "sink")  # the trained model stays
    assert tab.input_value("#set-task") == "repeat" and steps_of(tab) == [0, 1]
    tab.evaluate("window.confirm = () => true")
    with tab.expect_navigation():
        tab.select_option("#set-task", "sink")
    chosen = [
        settle(tab).input_value(f"#set-{key}") for key in ("task", "n_embd", "pace", "workers")
    ]
    assert chosen == ["sink", "64", "5", "2"]  # the size is the task's own
    tab.click("summary >> text=More settings")
    tab.select_option("#set-pace", "20")
    tab.click("text=Copy link")
    link = tab.inner_text("#setting output").split()[0]
    tab.goto("about:blank")
    tab.goto(link)
    chosen = [settle(tab).input_value(f"#set-{key}") for key in ("task", "pace", "workers")]
    assert chosen == ["sink", "20", "2"]


def test_heads_that_attend_uniformly_have_no_label(play: Open) -> None:
    """In a sequence of a few tokens, uniform attention has high scores."""
    labels = play("?task=modular&n_embd=16").locator(".pick i").all_inner_texts()
    assert len(labels) == 4 and not any(labels)


def test_end_of_training_is_said(play: Open) -> None:
    tab = play(f"{TINY}&max_steps=3")
    for steps in (3, 6):
        settle(tab).click("#train")
        tab.wait_for_function("(steps) => glassgpt.steps.at(-1) === steps", arg=steps)
        assert f"step {steps} " in settle(tab).inner_text("#moment")
        note = f"Trained for {steps} steps. Train goes on from there."
        tab.wait_for_selector(f"#training-note:has-text('{note}')")
        tab.fill("#slider", "0")  # Train shows the newest step again


def test_an_address_is_a_run(play: Open) -> None:
    """The same address trains the same model bitwise; another seed, another one."""

    def run(address: str) -> list[Any]:
        tab = play(f"?task=flipflop&n_embd=16&n_head=1&workers=2&{address}")
        return [train(tab, 6), logits(tab, "w0r0", 6).tolist()]

    first, again, other = (run(f"seed={seed}") for seed in (7, 7, 8))
    assert first == again and first[0]["loss"] != other[0]["loss"]


def test_settings_stand_in_the_address(play: Open) -> None:
    tab = play(TINY)
    with tab.expect_navigation():
        tab.select_option("#set-n_head", "4")
    assert "?n_layer=1&n_head=4&n_embd=16&batch_size=4" in settle(tab).url
    assert tab.locator(".pick").count() == 4
    tab.click("summary >> text=More settings")
    tab.fill("#set-learning_rate", "0.5")
    tab.press("#set-learning_rate", "Enter")
    assert "learning_rate=0.5" in tab.url and tab.evaluate("glassgpt.steps.length") == 1
    with tab.expect_navigation():
        tab.select_option("#set-task", "recall")
    assert settle(tab).url.endswith("?task=recall") and "value" in tab.inner_text("#source")


def test_wrong_address_is_a_line_for_each_mistake(play: Open) -> None:
    tab = play("?task=nothing&n_layer=9&seed=0.5&dropout=0.1&n_head=4")
    lines = tab.locator("#notices .trouble").all_inner_texts()
    assert [line.split(" cannot be ")[0] for line in lines[:3]] == [
        f"In the address, {name}" for name in ("task", "n_layer", "seed")
    ]
    assert lines[1].endswith("cannot be 9, but 1, 2, 3, 4. The default is used.")
    assert len(lines) == 4 and "dropout is not a setting of this page" in lines[3]
    assert tab.locator(".pick").count() == 8


def test_saved_weights_and_command_are_those_of_the_page(play: Open, tmp_path: Path) -> None:
    tab = play("?task=modular&n_embd=16&ngrams=2&optimizer=adamw&weight_decay=0.2&seed=3")
    loss = train(tab, 3)["loss"]
    tab.click("summary >> text=More settings")
    with tab.expect_download() as download:
        tab.click("text=Download weights")
    download.value.save_as(tmp_path / "last.safetensors")
    saved = open_run(tmp_path)
    text = "1+2="
    ids = torch.from_numpy(saved.tokenizer.encode(text).astype(int))[None]
    expected = saved.model()(ids)[0].detach().numpy()
    assert np.abs(logits(tab, text, 3) - expected).max() < 1e-5
    header = saved.header
    with pytest.raises(UserError, match=r"holds weights without .*; use --init_from"):
        saved.check_resume(header.corpus, header.config.train, header.machine)
    assert (header.state.step, header.state.best_val_loss) == (3, loss)
    assert not saved.tokenizer.to_dict()["chars"].isascii()
    tab.click("text=Copy as command")
    python, script, *flags = shlex.split(tab.inner_text("#setting output"))
    assert (python, script) == ("python", "train.py")
    rest, values = read_command_line(SECTIONS, flags, "", "")
    assert not rest and read_config(values, None) == saved.header.config


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
    """It keeps weights with a finite loss, and training can go on from them."""
    names = ("muon_learning_rate", "learning_rate")
    tab = play(TINY + "&workers=2" + "".join(f"&{name}=1e30" for name in names))
    found = train(tab, 20)
    note = settle(tab).inner_text("#training-note")
    assert note.startswith(f"Stopped at step {found['step'] + 1}: loss ")
    assert np.isfinite(logits(tab, "abc", found["step"])).all()
    tab.click("summary >> text=More settings")
    for name in names:
        tab.fill(f"#set-{name}", "0.001")
        tab.press(f"#set-{name}", "Enter")
    further = train(tab, 2)
    assert further["step"] == found["step"] + 2 and further["loss"] < 4


def test_training_begins_at_the_weights_on_show(play: Open) -> None:
    tab = play(TINY + "&learning_rate=0&muon_learning_rate=0")
    train(tab, 1)
    assert np.array_equal(logits(tab, "abc", 0), logits(tab, "abc", 1))


def test_snapshots_thin_out(play: Open) -> None:
    tab = play(TINY + "&n_head=1&batch_size=1")
    steps_alone = """async (count) => {
      for (let i = 0; i < count; i++) await glassgpt.train(1);
    }"""
    tab.evaluate(steps_alone, 96)
    tab.fill("#slider", "95")
    assert "step 95" in settle(tab).inner_text("#moment")
    tab.evaluate(steps_alone, 26)
    steps = steps_of(tab)
    assert len(steps) == 100 and steps[0] == 0 and steps[-1] == 122 and steps == sorted(steps)
    assert steps[:30] == [*range(30)]  # closer together at the beginning
    assert "step 95" in settle(tab).inner_text("#moment")  # which stays on show
    assert int(tab.input_value("#slider")) == steps.index(95) < 95
