"""The table of runs: their order, their numbers, and the config fields that differ."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import study
from data.corpus import Corpus
from tests.conftest import make_run
from training.checkpoint import load_checkpoint, save_checkpoint

METRICS = '{"step": 0, "baselines": {"%s": 4, "3-gram": 2.5}}\n{"step": 1, '
METRICS += '"tokens_per_second": 9, "bits_per_char": %s}\n[]\n5\n'
METRICS += '{"step": 1, "val_loss": 0.1, "accuracy": 0.75}\n'
METRICS += '{"step": 2, "val_loss": 3.0, "accuracy": 0.875}\n{"step'


def finished(
    name: str,
    loss: float | None,
    lowest: str = "bigram",
    corpus: Corpus | None = None,
    **choices: Any,
) -> int:
    """Make a run with this loss and known metrics, and return the number of its parameters."""
    run = make_run(Path("runs", name), **choices)
    header, tensors = load_checkpoint(run / "last.safetensors")
    state = replace(header.state, best_val_loss=loss, seconds=90)
    save_checkpoint(
        run / "last.safetensors",
        tensors,
        replace(header, state=state, corpus=corpus or header.corpus),
    )
    (run / "metrics.jsonl").write_text(METRICS % (lowest, len(name)))
    return sum(tensors[key].numel() for key in tensors if key.startswith("model."))


def test_runs_are_ordered_and_their_differences_are_shown(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One run was never evaluated, one is of a task, whose baselines are not counted, and the
    checkpoint of another is damaged. The accuracy is that at the lowest loss."""
    for name, loss, layers in (("new", None, 3), ("worse", 2.25, 1), ("cut", 0.1, 3)):
        finished(name, loss, "chance" if name == "worse" else "bigram", n_layer=layers)
    Path("runs/cut/last.safetensors").write_bytes(b"123456789")
    size = finished("best", 1 / 3)
    assert study.main(["runs"]) == 1
    output, errors = capsys.readouterr()
    assert re.fullmatch("left out: runs/cut/last.safetensors cannot be opened: .*\n", errors)
    text, _, heading, _, best, worse, new = (line.split() for line in output.splitlines())
    assert text == ["a", "text"] and heading[-1] == "model.n_layer"
    numbers = ["0.3333", "2.1667", "0.7500", "1.5000", "3", f"{size:,}", "9"]
    assert best == ["best", *numbers, "3"]
    assert worse[:2] == ["worse", "2.2500"] and [worse[-1], new[0]] == ["1", "new"]
    finished("bytes", 0.1, chars=None)  # of more bits per character than in `best`
    assert study.main(["runs", "bytes", "runs/best"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[2:]]
    assert " ".join(rows[0]).startswith("run loss, bits/char below n-grams, bits/char accuracy")
    assert rows[0][-1] == "data.tokenizer"
    below = [f"{(2.5 - loss) * bits / loss:.4f}" for loss, bits in ((1 / 3, 4), (0.1, 5))]
    assert [row[:3] for row in rows[2:]] == [["best", "4", below[0]], ["bytes", "5", below[1]]]


def test_runs_are_ranked_among_those_of_their_text(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A text is the same with other tokens, or under another name, and another one once edited."""
    log, novel = Corpus("log.txt", 1, "a", (900,)), Corpus("novel.txt", 1, "b", (5000,))
    finished("best-log", 0.25, corpus=log)
    finished("novel", 2.0, corpus=novel)
    finished("novel-in-bytes", 1.0, corpus=replace(novel, source="copy.txt", parts=(5001,)))
    finished("log", 0.5, corpus=log, n_layer=1)
    finished("edited", 0.75, corpus=replace(log, sha256="c"))
    assert study.main(["runs", "--json=out.json"]) == 0
    results = json.loads(Path("out.json").read_text())
    assert results["titles"][1:] == ["log.txt, 900 tokens", "novel.txt"]
    tables = results["tables"]
    runs = [[row[0] for row in table[1:]] for table in tables]
    assert runs == [["best-log", "log"], ["edited"], ["novel-in-bytes", "novel"]]
    assert ["model.n_layer" in table[0] for table in tables] == [True, False, False]
