"""Runs on tasks: the weight on the match, accuracy, and the frequencies of modular."""

import cmath
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch

import sample
import study
import train
from data.tasks import TASKS
from lens import measure
from lens.capture import capture
from lens.subject import MeasureOptions, Subject


def train_on(task: str, block_size: int, *flags: str) -> None:
    """Train a small model for a few steps."""
    shape = ["--model.n_layer=2", "--model.n_head=2", "--model.n_embd=16", "--train.batch_size=8"]
    steps = ["--train.max_steps=4", "--train.eval_every=2", "--train.sample_tokens=0"]
    few = ["--train.snapshots=2", "--train.eval_tokens=99"]
    words = [f"--data.source={task}", f"--model.block_size={block_size}", f"--run={task}"]
    assert train.main([*words, *shape, *steps, *few, *flags]) == 0


def tables(*words: str) -> list[list[list[Any]]]:
    assert study.main([*words, "--json=out.json"]) == 0
    found: list[list[list[Any]]] = json.loads(Path("out.json").read_text())["tables"]
    return found


@pytest.mark.parametrize("name", ["flipflop", "modular"])
def test_weight_on_match_is_that_of_the_keys_that_the_task_names(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Bits with long gaps leave queries and sequences without a match. A few sequences
    are measured at a time."""
    monkeypatch.setattr(measure, "NUMBERS_AT_ONCE", 1000)
    train_on(name, 4 if name == "modular" else 12, "--data.task_ignored=0.8")
    subject = Subject(name, MeasureOptions())
    texts, task = subject.sequences(9)[:, :-1], TASKS[name](subject.config.data, subject.window)
    means: dict[str, list[float]] = {}
    for text in texts:
        weights: dict[str, list[float]] = {}
        layers = capture(subject.model, text[None]).layers
        for q, keys in enumerate(task.match(text[None].numpy())[0]):
            if keys.any():
                weights.setdefault("uniform", []).append(sum(keys[: q + 1]) / (q + 1))
                for head in ("L0H0", "L0H1", "L1H0", "L1H1"):
                    row_S = layers[int(head[1])].weights_BHTS[0, int(head[3]), q]
                    weights.setdefault(head, []).append(float(row_S[torch.from_numpy(keys)].sum()))
        for head, each in weights.items():
            means.setdefault(head, []).append(sum(each) / len(each))
    heading, *rows = tables("scores", name, "--sequences=9")[0]
    place = heading.index("weight on match")
    found = {row[0].removesuffix(" sink"): row[place] for row in rows}
    assert found == pytest.approx({head: sum(w) / len(w) for head, w in means.items()}, abs=1e-5)
    assert name != "flipflop" or 0 < len(means["uniform"]) < 9


def test_prompt_without_a_match_has_no_such_score(workplace: Path) -> None:
    train_on("modular", 4)
    for prompt, shown in (("+1+", False), ("1+2=", True)):
        (heading, *_), *_ = tables("scores", "--sequences=2", f"--prompt={prompt}")
        assert ("weight on match" in heading) == shown
    Path("text.txt").write_text("1+2=" * 200)
    (heading, *_), *_ = tables("scores", "--source=text.txt")
    assert "weight on match" not in heading and "entropy" in heading
    assert study.main(["scores", "--prompt=1 x"]) == 2


def test_frequencies_of_modular_are_those_of_a_fourier_transform(workplace: Path) -> None:
    train_on("modular", 4, "--data.task_kinds=13")
    *_, (heading, random, model) = tables("scores", "--sequences=2")
    embedding = Subject("modular", MeasureOptions()).model.token_embedding.weight[:13].T.tolist()
    powers = [0.0] * 6
    for f in range(6):
        for column in embedding:
            wave = [x * cmath.exp(2j * math.pi * (f + 1) * n / 13) for n, x in enumerate(column)]
            powers[f] += abs(sum(wave)) ** 2
    expected = 1 - min(powers) / sum(powers)
    assert model[1] == pytest.approx(expected, abs=1e-5) and 5 / 6 < random[1] < 0.97
    assert "5 strongest of 6" in heading[1]


def test_samples_begin_with_the_prompt_or_the_first_token_and_runs_has_no_empty_column(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train_on("sink", 8, "--train.sample_tokens=5")
    samples = [line for line in capsys.readouterr().out.splitlines() if line.startswith("    | ")]
    assert len(samples) == 2 and all(re.fullmatch(r"    \| \^.{5}", line) for line in samples)
    assert sample.main(["sink", "--max_new_tokens=3", "--num_samples=2"]) == 0
    first, _, second = capsys.readouterr().out.splitlines()
    assert (first[0], second[0], len(first), len(second)) == ("^", "^", 4, 4)
    train_on("maximum", 4, "--data.task_length=3", "--train.sample_tokens=2")
    number = r"([12]?\d|3[01]|=)"
    assert len(re.findall(rf"\n    \| 0 {number} {number}\n", capsys.readouterr().out)) == 2
    options = ["--prompt=3 12\n30=", "--max_new_tokens=2", "--num_samples=2"]
    assert sample.main(["maximum", *options]) == 0
    first, _, second = capsys.readouterr().out.splitlines()
    assert all(re.fullmatch(rf"3 12 30 = {number} {number}", text) for text in (first, second))
    assert study.main(["runs", "runs/sink"]) == 0
    _, _, heading, *_ = capsys.readouterr().out.splitlines()
    assert "accuracy" in heading and "below n-grams" not in heading
