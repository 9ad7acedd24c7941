"""An untrusted run: none of its files is executed, and its name cannot control the terminal."""

import os
import pickle
from pathlib import Path
from typing import Any

import pytest

import sample
import study
import train
from tests.conftest import DEBUG

ODD = "\x1b]0;owned\x07\x1b[31m \u202e \n"
SMALL = [DEBUG, "--model.n_embd=8", "--train.sample_tokens=0", "--train.max_steps=1"]


class Bomb:
    """An object whose pickle creates a file when it is loaded."""

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (Path("exploded"),)


@pytest.mark.slow
def test_untrusted_run_is_not_executed(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Replace the run's files with pickles that `pickle.load` and `torch.load` would execute."""
    (workplace / "fine.txt").write_text("a text to study with enough of it\n" * 40)
    assert train.main([*SMALL, "--data.source=fine.txt", "--run=a"]) == 0
    run = Path("runs", ODD)
    os.rename("runs/a", run)
    for name in ("config.yaml", "metrics.jsonl", "events.out.tfevents.1"):
        (run / name).write_bytes(pickle.dumps(Bomb()))
    commands = [
        (sample.main, [ODD, "--max_new_tokens=1"]),
        (study.main, ["trace", ODD, "--prompt=text"]),
        (study.main, ["verify", ODD, "--prompt=text"]),
        (study.main, ["heads", ODD, "--sequences=2"]),
        (study.main, ["report", ODD, "--sequences=2"]),
        (study.main, ["compare", ODD, "--sequences=2", "--steps=1"]),
        (study.main, ["evaluate", ODD]),
        (train.main, [f"--init_from={ODD}", "--run=other"]),
        (train.main, [f"--resume={ODD}", "--train.max_steps=2"]),
    ]
    capsys.readouterr()
    for main, argv in commands:
        assert main(argv) == 0, argv
        out, err = capsys.readouterr()
        shown = (out + err).replace("\r\033[K", "")  # erases a progress line
        assert not {"\x1b", "\x07", "\u202e"} & set(shown), argv
    for path in run.rglob("*.safetensors"):
        path.write_bytes(pickle.dumps(Bomb()))
    for main, argv in commands:
        assert main(argv) == 2, argv
        line = capsys.readouterr().err
        assert line.startswith("error: ") and line[:-1].isprintable()
        assert "t.safetensors cannot be opened: " in line
    assert not Path("exploded").exists()
