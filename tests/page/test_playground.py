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
from data.tokenizer import BPETokenizer, train_bpe
from page.playground import make_playground
from tests.conftest import make_run
from tests.page.conftest import altered, settle, wait_for_address, with_more
from tests.page.test_page import SELECTED, assert_calm, point_at, read
from training.checkpoint import open_run
from training.start import check_resume

Open = Callable[..., Any]
TINY = "?n_layer=1&n_embd=16&batch_size=4"
SCORES = ".pick > span > span"


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "playground.html"
    path.write_text(make_playground(), encoding="utf-8")
    return path


@pytest.fixture
def play(file: Path, window: tuple[Any, list[str]]) -> Iterator[Open]:
    """Yield a function that opens the page; fail if it logs, or requests more than its workers."""
    tab, events = window

    def open_page(address: str = "", page: Path = file, calm: bool = False) -> Any:
        tab.goto("about:blank")
        tab.goto(page.as_uri() + (address if calm else with_more(address)))
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
    assert steps_of(tab) == [0]
    found = train(tab, 70)
    assert found["step"] == 70 and found["loss"] < np.log(32) - 0.1
    assert 0.05 < found["accuracy"] < 1
    moment = settle(tab).inner_text("#moment")
    assert f"loss, all tokens: {found['loss']:.3f}" in moment and "step 70 of 200 ·" in moment
    assert "below " in tab.locator("#loss").inner_html()
    steps = steps_of(tab)
    assert steps[0] == 0 and steps[-1] == 70 and tab.locator("#loss .dot").count() == len(steps)
    # Earlier snapshots keep their weights, in whichever order they are read.
    middle = steps[len(steps) // 2]
    read = {step: logits(tab, "abcabc", step) for step in (70, middle, 0)}
    assert np.array_equal(read[0], before) and not np.array_equal(read[middle], read[70])
    assert np.array_equal(logits(tab, "abcabc", middle), read[middle])
    tab.fill("#slider", "0")
    assert "step 0 of 200 ·" in settle(tab).inner_text("#moment")
    assert "PyTorch" not in tab.inner_text("body")


def test_heads_are_ablated_while_it_trains(play: Open) -> None:
    tab = play(f"{TINY}&pace=5&max_steps=20")
    tab.select_option("#set-pace", "1")
    assert "pace=1" in tab.url
    tab.click("#train")
    tab.wait_for_function("() => glassgpt.steps.length > 1")
    assert tab.inner_text("#train") == "Pause" and tab.is_disabled("text=Step >> visible=true")
    tab.click("#ablate")
    tab.wait_for_selector(".pick.off")
    tab.wait_for_function("() => glassgpt.steps.length > 2")
    assert "ablated" in tab.inner_text("#edit-list")
    tab.click("#train")
    tab.wait_for_selector("#train:text-is('Train')")  # not another text with that word
    tab.select_option("#set-pace", "fastest")
    settle(tab).keyboard.press("u")
    for steps in (20, 40):  # Train ends at max_steps, and goes on from there
        tab.fill("#slider", "0")  # Train shows the newest step again
        settle(tab).click("#train")
        tab.wait_for_selector("#train:text-is('Train on')")
        assert steps_of(tab)[-1] == steps and f"step {steps} " in settle(tab).inner_text("#moment")


def test_new_task_forgets_the_head_that_it_does_not_have(play: Open) -> None:
    tab = play("?task=repeat#head=L1H1")
    assert tab.inner_text("#head-title").startswith("L1H1")
    with tab.expect_navigation():
        tab.select_option("#set-task", "stories")
    assert "this page does not have" not in settle(tab).inner_text("body")


def test_head_that_forms_is_selected_unless_the_reader_selects_another(play: Open) -> None:
    tab = play("?max_steps=20#head=L0H1")
    tab.click("#train")
    tab.wait_for_selector("#train:text-is('Train on')")
    assert max(read(tab, SCORES)) < 0.3 and tab.inner_text(SELECTED) == "L0H1"
    assert settle(tab).inner_text("#source").startswith("Not yet? Press Train on.")
    tab.locator(".pick", has_text="L0H0").click()
    while max(read(tab, SCORES)) < 0.35:
        train(tab, 5)
        settle(tab)
    assert tab.inner_text(SELECTED) == "L0H0"
    assert not tab.inner_text("#source").startswith("Not yet?")
    tab.locator(".pick", has_text="L0H1").click()
    train(tab, 1)
    formed = settle(tab).inner_text(SELECTED)
    assert formed == f"L1H{np.argmax(read(tab, SCORES)[2:])}"


def test_every_task_can_be_chosen(play: Open) -> None:
    """The size is then the task's own."""
    tab = play(f"{TINY}&pace=5&workers=2")
    tasks = {*tab.locator("#set-task option").all_inner_texts()}
    assert tasks == {*page.playground.SETTINGS}
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
    assert settle(tab).url.partition("#")[0].endswith("?task=modular&pace=5&workers=2")
    assert tab.input_value("#set-n_embd") == "96" and "grokking" in tab.inner_text("#source")
    tab.focus("#set-task")
    assert tab.inner_text("#term").startswith("task: Sums modulo 97, ")
    # In a sequence of a few tokens, uniform attention has high scores.
    labels = tab.locator(".pick i").all_inner_texts()
    assert len(labels) == 4 and not any(labels)


def test_task_wrap_opens_with_a_line_that_is_too_long(play: Open) -> None:
    """Colored by the probability of its end. The sentence about the task can be followed."""
    tab = play("?task=wrap&n_layer=1&n_embd=16", calm=True)
    assert "click the last ↵ of the text, and move its key" in tab.inner_text("#source")
    assert "a newline is likely (0.3 or more) nowhere." in tab.inner_text("#line-end")
    assert len(tab.inner_text("#text").splitlines()[-1]) > 40
    tab.locator("#text .token", has_text="↵").last.click()
    tab.fill("#key-by", "10")
    assert settle(tab).inner_text("#line-end").endswith("nowhere with them.")
    assert "moved by 10 in L0H0" in tab.inner_text("#edit-list")


def test_kinds_of_attention_are_settings(play: Open, tmp_path: Path) -> None:
    """Without MLPs, no part of the page has them. What is outside a window is masked. The weights
    are those of a GPT."""
    text, kinds = "abcdefabcdef", "n_kv_head=1&mlp_ratio=0&window=4"
    tab = play(f"?n_layer=2&n_embd=16&batch_size=4&{kinds}#text={text}&edit=L0.mlp&mlp=0")
    train(tab, 4)
    assert tab.is_visible("#map") and not tab.locator(".mlp, #edit-list p").count()
    settle(tab).click(".end >> nth=1")
    assert tab.locator("#contributions th").all_inner_texts() == [
        *("", "H0", "H1", "L0", "L1", "embedding", "sum")
    ]
    tab.click("#show-circuit")
    rows = settle(tab).locator("#circuit-section .rank").all_text_contents()
    assert rows == ["embedding", "L0 heads", "L1 heads", "logit"]
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
        tab.click('text="Download"')
    download.value.save_as(tmp_path / "last.safetensors")
    saved = open_run(tmp_path)
    ids = torch.from_numpy(saved.tokenizer.encode(text).astype(int))[None]
    expected = saved.model()(ids)[0].detach().numpy()
    assert np.abs(logits(tab, text, 4) - expected).max() < 1e-5
    tab.click("text=Copy link")
    assert kinds in tab.inner_text("#said")


def test_wrong_address_is_a_line_for_each_mistake(play: Open) -> None:
    wrong = "n_head=4&n_kv_head=8&dropout=0.1&norm=none&A.n_kv_head=3&A.n_head=1"
    tab = play(f"?task=nothing&n_layer=9&seed=0.5&{wrong}")
    lines = tab.locator("#notices .trouble").all_inner_texts()
    assert [line.split(" cannot be ")[0] for line in lines[:3]] == [
        f"In the address, {name}" for name in ("task", "n_layer", "seed")
    ]
    assert lines[1].endswith("cannot be 9, but 1, 2, 3, 4. The default is used.")
    for line, name in zip(lines[3:5], ("dropout", "norm"), strict=True):
        assert f"{name} is not a setting of this page" in line
    assert "A.n_kv_head cannot be 3, but null, 1, 2, 4, 8. The" in lines[5]
    assert len(lines) == 7 and "n_kv_head cannot be 8 with n_head 4" in lines[6]
    assert tab.locator(".pick").count() == 8


def test_shared_keys_fit_the_heads(play: Open) -> None:
    """Of A, which cannot have the key-value heads of B, and of what the form offers."""
    tab = play("?task=flipflop&n_embd=16&workers=2&n_head=2&n_kv_head=2&A.n_head=1")
    (line,) = tab.locator("#notices .trouble").all_inner_texts()
    assert "A.n_kv_head cannot be 2 with A.n_head 1. The default is used." in line
    for button in ("Go to A", "Keep, go to B"):
        with tab.expect_navigation():
            tab.click(f"button:text('{button}')")
        assert not settle(tab).locator("#notices .trouble").count()
        tab.evaluate("window.confirm = () => true")
        train(tab, 1)
    assert "A: heads 1, key-value heads as heads, kept at step 1. " in tab.inner_text("#source")


SETTINGS = "task=flipflop&n_embd=16&n_head=1&workers=2"


def test_an_address_is_a_run(play: Open) -> None:
    """The same address trains the same model bitwise, also from Copy link; another seed, another
    one."""

    def run(tab: Any) -> list[Any]:
        return [train(tab, 6), logits(tab, "w0r0", 6).tolist()]

    tab = play(f"?{SETTINGS}&seed=7")
    first = run(tab)
    tab.click("text=Copy link")
    link = tab.inner_text("#said").split()[0]
    assert "seed=7" in link
    again, other = run(play("?" + link.partition("?")[2])), run(play(f"?{SETTINGS}&seed=8"))
    assert first == again and first[0]["loss"] != other[0]["loss"]


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
            tab.click('text="Download"')
        download.value.save_as(tmp_path / "last.safetensors")
        assert f"the weights of step {step}, " in tab.inner_text("#said")
        saved = open_run(tmp_path)
        ids = torch.from_numpy(saved.tokenizer.encode(text).astype(int))[None]
        expected = saved.model()(ids)[0].detach().numpy()
        assert np.abs(logits(tab, text, step) - expected).max() < 1e-5
        assert saved.header.state.step == step
        assert (saved.header.state.best_val_loss == loss) == (step == 3)
    header = saved.header
    with pytest.raises(UserError, match=r"holds weights without .*; use --init_from"):
        check_resume(saved, header.corpus, header.config.train)
    tab.click("#more-settings summary")
    tab.click("text=Copy config")
    config, _, note = tab.inner_text("#said").rpartition("\n")
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
    assert "never saw '97'" in settle(tab).inner_text("#text-state")
    assert play(f"?task=modular{address}").input_value("#typed") == "63 + 35 ="


def test_pasted_text_is_trained_on(play: Open, tmp_path: Path) -> None:
    """By a press on Train, which asks before it replaces a trained model."""
    tab = play("?task=text&n_layer=1&n_embd=16&pace=fastest&max_steps=1")
    assert "stories" in tab.inner_text("#training-text output")
    vocab = {*tab.evaluate("glassgpt.vocab")}
    assert {*"Grandma ?"} <= vocab and "{" not in vocab
    train(tab, 1)
    tab.fill("#pasted", "too short")
    assert "41 more characters" in tab.inner_text("#training-text output")
    tab.click("#train")
    assert tab.inner_text("#said") == "The text needs 50 characters or more."
    tab.keyboard.press("Escape")
    for text in ("\U0001f408\u0301" * 30, "the cat sat on the mat. " * 30):
        (tmp_path / "mine.txt").write_text(text, encoding="utf-8")
        tab.set_input_files("#training-text input", tmp_path / "mine.txt")
        says = f"this text: {len(text)} characters."
        tab.wait_for_selector(f"text=Train takes {says}")
        tab.evaluate("window.confirm = () => false")
        tab.click("#train")  # the trained model stays
        assert steps_of(tab) == [0, 1]
        tab.evaluate("window.confirm = () => true")
        with tab.expect_navigation():
            tab.click("#train")
        tab.wait_for_selector("#train:text-is('Train on')")
        assert steps_of(settle(tab)) == [0, 1] and tab.input_value("#pasted") == text
        assert tab.inner_text("#training-text output") == f"The model has {says}"
    assert "".join(tab.evaluate("glassgpt.vocab")) == " .acehmnost"
    assert tab.input_value("#set-n_layer") == "1"
    found = train(tab, 20)
    assert found["loss"] < np.log(11) - 0.3 and found["accuracy"] is None
    assert "below " in tab.locator("#loss").inner_html()
    tab.reload()  # which trains nothing
    assert steps_of(settle(tab)) == [0] and tab.inner_text("#train") == "Train"


def test_loss_that_is_not_finite_stops(play: Open) -> None:
    """It keeps weights with a finite loss, also if it trains on."""
    tab = play(TINY + "&workers=2&muon_learning_rate=1e30&learning_rate=1e30")
    for _ in range(2):
        found = train(tab, 20)
        note = settle(tab).inner_text("#source")
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


# --- the top of the page -------------------------------------------------------------------------


def test_page_is_calm_until_more_is_pressed(play: Open) -> None:
    assert_calm(play(calm=True))


def test_every_setting_explains_itself(play: Open) -> None:
    """By focus, with its field's name and help, and its lesson. It makes a new model."""
    tab = play(TINY)
    tab.click("#more-settings summary")
    for key in tab.evaluate(
        "Object.keys(JSON.parse(document.getElementById('data').textContent).help)"
    ):
        if tab.locator(f"#set-{key}").count():
            tab.focus(f"#set-{key}")
            assert tab.inner_text("#term").startswith(f"{key}: ") and tab.is_visible("#term")
    field = tab.locator("#set-weight_decay")
    field.fill("-1")
    field.press("Enter")
    assert tab.inner_text("#said") == "weight_decay cannot be -1, but 0 to 1e+30."
    tab.keyboard.press("Escape")
    field.fill("0.25")
    with tab.expect_navigation():
        field.press("Enter")
    assert "weight_decay=0.25" in settle(tab).url


# --- files ---------------------------------------------------------------------------------------


def open_file(tab: Any, path: Path) -> Any:
    with tab.expect_navigation():
        tab.set_input_files("input[type=file]", path)
    return settle(tab)


def download(tab: Any, path: Path) -> bytes:
    with settle(tab).expect_download() as file:
        tab.click('text="Download"')
    file.value.save_as(path)
    tab.keyboard.press("Escape")
    return path.read_bytes()


def test_opened_file_is_what_was_saved(play: Open, tmp_path: Path) -> None:
    """Bitwise. Training goes on from there, with the sequences that come next."""
    tab = play("?task=wrap&n_embd=32&n_kv_head=2&seed=5")
    train(tab, 4)
    content = download(tab, tmp_path / "a.safetensors")
    tab = open_file(play(TINY), tmp_path / "a.safetensors")
    assert tab.input_value("#set-n_embd") == "32" and tab.is_disabled("#set-n_embd")
    assert "a.safetensors, step 4, validation loss " in tab.inner_text("#source")
    assert "step 4 " in tab.inner_text("#moment")
    assert download(tab, tmp_path / "b.safetensors") == content
    found = train(tab, 2)
    download(tab, tmp_path / "last.safetensors")
    saved = open_run(tmp_path)
    assert found["step"] == saved.header.state.step == 6
    assert saved.header.state.val_loss == found["loss"]
    assert steps_of(tab)[0] == 4
    tab.reload()  # the file outlives it
    assert steps_of(settle(tab)) == [4]
    with tab.expect_navigation():
        tab.select_option("#set-task", "modular")
    assert settle(tab).url.partition("#")[0].endswith("?task=modular") and steps_of(tab) == [0]


TEXT = "the cat sat on the mat; ünï \n" * 9
BPE = BPETokenizer(train_bpe([TEXT], 270).merges, ("<|endoftext|>",), 3)
RUNS: list[dict[str, Any]] = [
    {"chars": "".join(sorted(set(TEXT)))},
    {"chars": None, "bias": True, "positions": "learned", "activation": "gelu", "dropout": 0.1},
    {"tokenizer": BPE, "tie_embeddings": True, "window": [0, 3, 5], "n_kv_head": 1},
    {"tokenizer": BPE, "mlp_ratio": 0, "ngrams": 2, "qk_norm": False, "n_embd": 24},
]


@pytest.mark.parametrize("choices", RUNS, ids=("char", "byte", "bpe", "attention only"))
def test_run_of_python_opens(play: Open, tmp_path: Path, choices: dict[str, Any]) -> None:
    """The page has PyTorch's logits and labels, shows all views, and says why it does not train."""
    saved = open_run(make_run(tmp_path / "run", **choices), "last")
    tab = open_file(play(TINY), saved.path)
    text = "the mat; ün"[: saved.config.model.block_size]
    ids = saved.tokenizer.encode(text).astype(int)[: saved.config.model.block_size]
    expected = saved.model()(torch.from_numpy(ids)[None])[0].detach().numpy()
    call = f"JSON.stringify(glassgpt.logits({ids.tolist()}))"
    assert np.abs(np.array(json.loads(tab.evaluate(call))) - expected).max() < 1e-4
    assert tab.evaluate("glassgpt.vocab") == saved.tokenizer.labels
    tab.fill("#typed", text)
    assert settle(tab).locator("#text .token").count() == len(saved.tokenizer.encode(text))
    for key in ("lens", "patch", "scores", "alone", "circuit", "compare"):
        tab.click(f"#show-{key}")
        assert settle(tab).is_visible(f"#{key}-section")
    assert tab.is_disabled("#train") and "random strings" in tab.inner_text("#moment")
    assert "Train is disabled: the file does not hold the text" in tab.inner_text("#source")
    download(tab, tmp_path / "last.safetensors")
    again = open_run(tmp_path)
    assert again.header == saved.header
    assert all(torch.equal(again.tensors[name], saved.tensors[name]) for name in again.tensors)


def test_run_of_a_task_goes_on(play: Open, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", "wri01", source="flipflop", n_kv_head=1, window=[0, 3, 5])
    tab = open_file(play(TINY), run / "last.safetensors")
    assert "new state of the optimizer" in tab.inner_text("#source") and tab.is_enabled("#train")
    assert tab.locator(".pick").count() == 6  # three layers, two heads
    before = logits(tab, "w0r0", 3)
    assert train(tab, 2)["step"] == 5
    assert not np.array_equal(logits(tab, "w0r0", 5), before)
    download(tab, tmp_path / "last.safetensors")
    name = "model.token_embedding.weight"  # which AdamW trains, whose learning rate is omitted
    moved = open_run(tmp_path).tensors[name] - open_run(run, "last").tensors[name]
    assert moved.abs().median() > 1e-3


def test_wrong_file_is_one_line_and_replaces_nothing(play: Open, tmp_path: Path) -> None:
    tab = play(TINY)
    train(tab, 1)
    right = download(tab, tmp_path / "right.safetensors")
    state = open_run(make_run(tmp_path / "run", norm="none")).path.read_bytes()
    flipped = right[:-9] + bytes([right[-9] ^ 1]) + right[-8:]
    older = right.replace(b"glassgpt 1", b"glassgpt 0")
    wrong = (
        (b"", "it is not a safetensors file, or not all of it"),
        (b"some words of a text", "it is not a safetensors file, or not all of it"),
        (right[:200], "it is not a safetensors file, or not all of it"),
        (right[: len(right) // 2], "its checksum is wrong: the file is damaged, or not all of it"),
        (flipped, "its checksum is wrong: the file is damaged, or not all of it"),
        (older, "it is not a checkpoint of this version (glassgpt 1)"),
        (state, "the page does not know model.norm none"),
    )
    for i, (content, reason) in enumerate(wrong):
        (tmp_path / f"{i}.safetensors").write_bytes(content)
        tab.set_input_files("input[type=file]", tmp_path / f"{i}.safetensors")
        tab.wait_for_selector(f"#said:has-text('{i}.safetensors cannot be opened: {reason}.')")
        tab.keyboard.press("Escape")
        assert steps_of(tab) == [0, 1] and tab.url.partition("#")[0].endswith(TINY)
    tab.evaluate("""() => {
      const dataTransfer = new DataTransfer();
      dataTransfer.items.add(new File(["x"], "dropped.txt"));
      document.body.dispatchEvent(new DragEvent("drop", { dataTransfer, bubbles: true }));
    }""")
    tab.wait_for_selector("#said:has-text('dropped.txt cannot be opened: it is not a safetensors')")
    tab = play("?file=gone.safetensors")
    assert "does not have the file gone.safetensors" in tab.inner_text("#notices")


# --- two runs ------------------------------------------------------------------------------------

SAVED = "JSON.parse(window.name.slice(9)).A"


def test_two_runs_are_compared(play: Open) -> None:
    """A outlives the change of a setting, and B is trained on the same sequences."""
    tab = play("?task=flipflop&n_embd=16&n_head=2&batch_size=4&workers=1")
    losses = [train(tab, 1)["loss"] for _ in range(5)]
    steps = steps_of(settle(tab))
    tab.click("text=Keep as A")
    kept = tab.evaluate(SAVED)
    assert kept["steps"] == steps and kept["loss"][-5:] == losses
    shown = tab.locator("#text .token").all_inner_texts()
    _, layer, _, head = tab.inner_text("#head-title")[:4]
    ids = [tab.evaluate("glassgpt.vocab").index(token) for token in shown]
    weights = tab.evaluate(f"glassgpt.attention({ids}, {layer}, {head})")
    assert kept["map"]["weights"] == [weight for row in weights for weight in row]
    tab.click("#more-settings summary")
    tab.fill("#set-max_steps", "3")  # which changes no step
    with tab.expect_navigation():
        tab.press("#set-max_steps", "Enter")
    assert "A.max_steps=200" in settle(tab).url
    assert [train(tab, 1)["loss"] for _ in range(5)] == losses  # so A and B had the same sequences
    assert tab.evaluate(SAVED) == kept
    title = tab.locator("#loss .kept title").all_text_contents()
    assert title == ["A: loss", "A: in validation"]
    source = tab.inner_text("#source")
    assert source == "A: steps 200, kept at step 5. B: steps 3, on the same sequences."
    tab.click("#show-compare")
    captions = settle(tab).locator("#compare-section figcaption").all_inner_texts()
    assert (
        captions[0].startswith("A: steps 200. L1H") and f"loss {losses[-1]:.3f}, acc" in captions[0]
    )
    assert captions[1].startswith("B: steps 3. L1H") and captions[0][14:] == captions[1][12:]
    wait_for_address(tab, "panel=compare")
    tab.click("text=Copy link")
    link = tab.inner_text("#said").split()[0]
    assert "max_steps=3" in link and "A.max_steps=200" in link and "panel=compare" in link
