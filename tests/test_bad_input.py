"""Mistakes in commands end in one error line and exit code 2, and leave no files behind; nothing in
an untrusted run is executed; unusual texts work."""

import os
import pickle
import runpy
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

import formats.__main__
import sample
import study
import train
from tests.conftest import DEBUG, ROOT, make_run
from training.checkpoint import open_run

COMMANDS = {"train": train, "sample": sample, "study": study, "formats": formats.__main__}
MODULAR = "train --data.source=modular --model.block_size=4"
# Flags and config files are tested in configs/test_load.py, resuming in test_train.py.
MISTAKES = {  # command -> part of the error line
    "train configs/debgu.yaml": "No such file or directory: configs/debgu.yaml",
    "train --data.source=\udcff.txt": "--data.source must be a valid",
    "train --data.source=text.txt --data.column=text": "--data.column is for tables (.csv, ",
    "train --data.source=repeat --data.column=text": "--data.column is for tables (.csv, ",
    "train --data.source=modular": "--model.block_size must be 4 for the task modular",
    f"{MODULAR} --data.task_kinds=1": "--data.task_kinds 1 must be from 2 to 500 for this task",
    f"{MODULAR} --data.task_held_out=0": "0.0 leaves no sums for training or for validation",
    "train --data.source=addition --data.task_length=9": "9 must be from 1 to 3 for this task",
    "train --data.source=addition --model.block_size=11": "block_size must be at least 12",
    "train --train.compile=true": "--train.compile needs a --model.dropout that does not change",
    "train --data.source=flipflop --data.task_kinds=2": "does not use --data.task_kinds",
    "train --data.source=flipflop --data.task_ignored=1": "task_ignored must be less than 1, got 1",
    "train --data.source=recall --data.task_kinds=8": "16 must be at most --data.task_kinds 8",
    "train --data.source=maximum": "--model.block_size must be 7 for 6 numbers",
    "train --data.source=recall --data.tokenizer=bpe": "of 32 tokens; omit --data.tok",
    "train --init_from=a --data.source=markov --data.task_kinds=5": "the saved run has 28",
    "study tarce": "paths, report, runs; did you mean trace?",
    "study heads --source=text.txt --without=L9H0": "L9H0 is not a head; name heads from L0H0 to",
    "study heads --at=a": "--at is a command now: python study.py token TOKEN [RUN]",
    "study token": "token takes TOKEN [RUN]: python study.py token TOKEN [RUN] [--flag VALUE ...]",
    "study examples L0H0 --sequences=1": "--sequences must be greater than or equal to 2, got 1",
    "study report a --json=a.json": "report prints no tables; omit --json",
    "study scores --source=text.txt --period=7": "--period 7 exceeds 6",
    "study trace --source=text.txt --layer=3": "--layer 3 must be from 0 to 2",
    "study token z --source=text.txt": "z is not in the measured sequences",
    "study paths a": "train a run with --model.n_layer 1 --model.mlp_ratio 0 --model.norm none",
    "study ngrams task": "a task has no n-grams; use a run on a text",
    "study report bare --source=text.txt": "the page does not support norm none",
    "study trace --source=text.txt --prompt=t": "--prompt must have at least 2 tokens",
    "study report a --out=no/page": "--out 'no/page' must name a .html file in a folder",
    "study heads --source=text.txt --json=text.txt": "--json 'text.txt' must name a .json file",
    "study heads --source=text.txt --json=no/a.json": "--json 'no/a.json' must name a .json file",
    "study compare --source=text.txt --only=scales": "must be one of one_head, output",
    "study heads --source=text.txt --json=chat.json": "chat.json was not written by study.py",
    "study heads --source=chat.csv": "no column text among who, said; save one of them as",
    "study heads --source=old.txt": "old.txt is not UTF-8 text at byte 3; convert it\n",
    "study evaluate a --source text.txt chat.csv": "one argument too many: chat.csv; put a",
    "sample a --prompt=to --prompt=be": "--prompt is given twice",
    "formats import absent": "No such file or directory: absent",
    "formats import full --run=a": "runs/a exists; use --resume",
    "formats export a full": "full must be a new folder in an existing one",
}


@pytest.mark.parametrize("words", MISTAKES)
def test_mistake_ends_in_one_error_line_and_leaves_no_files(
    workplace: Path, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run(Path("runs/task"), source="brackets", chars="()[]{}<>")
    make_run(Path("runs/bare"), norm="none")
    make_run(Path("runs/a"))
    Path("full").mkdir()
    Path("text.txt").write_text("the value of the object is returned\n" * 60)
    Path("old.txt").write_bytes("café".encode("latin-1"))
    Path("chat.csv").write_text("who,said\nme,hello\n")
    Path("chat.json").write_text('{"who": "me"}')
    before = {*Path().rglob("*")}
    name, *argv = words.split()
    assert COMMANDS[name].main(argv) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("error: ") and MISTAKES[words] in f"{line}\n"
    assert {path for path in Path().rglob("*") if path.parts[0] != "cache"} == before


@pytest.mark.parametrize("script", ["train.py", "sample.py", "study.py", "formats"])
def test_script_exits_with_2_on_a_mistake(script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [script, "--wrong"])
    monkeypatch.setattr(sys, "path", [str(ROOT), *sys.path])
    with pytest.raises(SystemExit, match="2"):
        runpy.run_path(str(ROOT / script), run_name="__main__")


@pytest.mark.slow
def test_no_network_access_unless_a_config_names_the_hub(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def no_network(*args: object, **kwargs: object) -> None:
        raise AssertionError("something reaches for the network")

    monkeypatch.setattr(socket.socket, "connect", no_network)
    monkeypatch.setattr(socket, "getaddrinfo", no_network)
    short = [f"--data.source={ROOT / 'LICENSE'}", "--model.block_size=16", "--model.n_embd=8"]
    short += ["--train.max_steps=2", "--train.sample_tokens=2", "--train.snapshots=0"]
    assert train.main([DEBUG, *short, "--run=a"]) == 0
    assert train.main(["--resume=a", "--train.max_steps=3"]) == 0
    assert sample.main(["--max_new_tokens=2"]) == 0
    assert study.main(["report", "--sequences=2"]) == 0
    assert train.main([DEBUG, "--data.source=hub:nobody/nothing"]) == 2
    assert "hub:nobody/nothing could not be loaded" in capsys.readouterr().err  # needs the network


# --- an untrusted run -----------------------------------------------------------------------------


ODD = "\x1b]0;owned\x07\x1b[31m \u202e \n"
SMALL = [DEBUG, "--model.n_embd=8", "--train.sample_tokens=0", "--train.max_steps=1"]


class Bomb:
    """An object whose pickle creates a file when it is loaded."""

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (Path("exploded"),)


@pytest.mark.slow
def test_untrusted_run_is_not_executed(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Replace the run's files with pickles that `pickle.load` and `torch.load` would execute. Its
    name cannot control the terminal, either."""
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


# --- unusual texts --------------------------------------------------------------------------------


FAMILY = "\U0001f468\u200d\U0001f469\u200d\U0001f467"  # one emoji made of three joined by U+200D
TEXTS = {
    "a million characters on one line": "abcde " * 166_667,
    "one distinct character": "a" * 1000,
    "joined, from right to left, controls, \\r\\n": f"\ufeff\0{FAMILY} e\u0301 שלום\x1b\x7f\r\n"
    * 60,
    "50,000 distinct characters": "".join(map(chr, [*range(0x20, 0xD800)][:50_000])),
}


@pytest.mark.parametrize("name", TEXTS)
def test_unusual_text_works(workplace: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = TEXTS[name]
    Path("odd.txt").write_bytes(text.encode())
    flags = ["--data.source=odd.txt", "--train.max_steps=1", "--train.eval_tokens=2000"]
    flags += ["--model.n_embd=8"]  # larger models are slow with a vocabulary of 50,000
    assert train.main([DEBUG, *flags, "--train.sample_tokens=5", "--run=odd"]) == 0
    saved = open_run(Path("runs/odd"))
    assert set(saved.tokenizer.labels) == set(text) - {"\r"}  # newlines are \\n
    capsys.readouterr()
    prompt = text[1:3]  # one has a NUL, which no shell could pass
    assert sample.main([f"--prompt={prompt}", "--max_new_tokens=9"]) == 0
    written = capsys.readouterr().out
    assert written.startswith(prompt)
    assert len(written) == len(prompt) + 9 + 1 and set(written) <= set(text + "\n")
    assert study.main(["trace", f"--prompt={prompt}"]) == 0
    assert all(char.isprintable() or char == "\n" for char in capsys.readouterr().out)
