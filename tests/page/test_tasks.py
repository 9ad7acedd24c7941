"""The pages of runs on tasks, and of models with a context of a few tokens."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

import study
from common.errors import UserError
from data.tasks import TASKS
from data.tokenizer import WordTokenizer
from lens.subject import MeasureOptions, Subject
from model.gpt import GPT
from tests.lens.test_tasks import tables, train_on
from tests.page.conftest import Show
from tests.reports import parse_report

WORDS = WordTokenizer((*map(str, range(12)), "+", "="))
Y = "(all) => all.map((each) => each.getAttribute('y'))"


@pytest.mark.parametrize("block_size", [1, 3])
def test_context_without_room_for_copying_can_be_studied(
    workplace: Path, show: Show, block_size: int
) -> None:
    train_on("flipflop", block_size)
    for command in ("trace", "verify", "compare --steps=1 --sequences=2"):
        assert study.main(command.split()) == 0
    (heading, *_), *others = tables("scores", "--sequences=4")
    assert "copying" not in {table[0][0] for table in others} and "induction" not in heading
    assert ("weight on match" in heading) == (block_size > 2)
    assert study.main(["scores", "--period=2"]) == 2
    assert study.main(["report"]) == 0
    tab = show(Path("runs/flipflop/report.html").read_text(encoding="utf-8"))
    tab.click("#more button:has-text('Head scores')")
    assert "Copying" not in tab.inner_text("#scores-section")


@given(st.text("0123456789+=x😀é \t\n"))
@example("3+11 = 12")
def test_numbers_are_the_tokens_of_python(engine: Any, text: str) -> None:
    """A number or a sign that the model never saw is kept as it was typed."""
    ask = """([described, vocab, text]) => {
      const tokenizer = new Tokenizer(described, vocab), tokens = tokenizer.encode(text);
      const address = tokenizer.toAddress(tokens);
      return [tokens, tokenizer.decode(tokens), tokenizer.fromAddress(address)];
    }"""
    tokens, shown, kept = engine.evaluate(ask, [WORDS.to_dict(), WORDS.labels, text])
    assert kept == tokens and "".join(shown.split()) == "".join(text.split())
    seen = [token["id"] for token in tokens if token["id"] is not None]
    assert WORDS.encode(" ".join(WORDS.labels[i] for i in seen)).tolist() == seen
    unseen = {token["token"] for token in tokens} - {*WORDS.labels}
    if not unseen:
        ids = WORDS.encode(text)
        assert (seen, shown) == (ids.tolist(), WORDS.decode(ids))
        return
    with pytest.raises(UserError, match=re.escape(" ".join(map(repr, sorted(unseen))))):
        WORDS.encode(text)


@torch.no_grad()
def accuracy_of(model: GPT, sequences: torch.Tensor) -> float:
    return (model(sequences[:, :4])[:, 3].argmax(-1) == sequences[:, 4]).float().mean().item()


def test_page_of_a_task_shows_its_match_and_accuracy(workplace: Path, show: Show) -> None:
    """Accuracy has an axis of its own; the text is a sum that was held out, without its answer."""
    flags = ["--train.learning_rate=0.02", "--train.max_steps=40", "--train.eval_every=40"]
    train_on("modular", 4, "--data.task_kinds=7", "--data.task_held_out=0.5", *flags)
    assert study.main(["report", "--checkpoint=last"]) == 0
    run = Path("runs/modular")
    data, _ = parse_report(run)
    subject = Subject("modular", MeasureOptions(checkpoint="last"))
    task: Any = TASKS["modular"](subject.config.data, 4)
    sequences = [torch.from_numpy(task.draw([0, part], 256, part == 0)) for part in (0, 2)]
    accuracy = [accuracy_of(subject.model, each) for each in sequences]
    assert data["snapshots"][-1]["accuracy"] == pytest.approx(accuracy)
    assert abs(accuracy[1] - accuracy[0]) > 0.1
    scores = data["snapshots"][-1]["scores"]["weight_on_match"]
    assert data["opening"]["head"] == max(range(4), key=scores.__getitem__)
    tab = show((run / "report.html").read_text(encoding="utf-8"))
    assert tab.input_value("#measure") == "weight_on_match"
    text = subject.tokenizer.encode(tab.input_value("#typed")).tolist()
    assert text[1::2] == [7, 8] and text[0] * 7 + text[2] in task.pairs[1]
    best = data["opening"]["head"]
    assert tab.inner_text(".pick[aria-pressed=true] b") == f"L{best // 2}H{best % 2}"
    moment = tab.inner_text("#moment")
    assert "loss, all tokens: " in moment and "accuracy, answers only: " in moment
    shown = re.findall(r"([\d.]+)% in validation \(right axis\), ([\d.]+)% in", moment)[0]
    assert [float(each) / 100 for each in shown] == pytest.approx(accuracy, abs=6e-4)
    assert "sums modulo 7" in tab.inner_text("#lead")
    for typed in ("=+", "x!", "1+1="):
        tab.fill("#typed", typed)
        tab.wait_for_selector("body[data-busy=no]")
