"""Mistakes in commands end in one error line and exit code 2, and leave no files behind."""

import runpy
import socket
import sys
from pathlib import Path

import pytest

import formats.__main__
import sample
import study
import train
from tests.conftest import DEBUG, ROOT, make_run

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
    "study trace --random": "--random is a command now: python study.py random\n",
    "study token": "token takes TOKEN [RUN]: python study.py token TOKEN [RUN] [--flag VALUE ...]",
    "study examples L0H0 --sequences=1": "--sequences must be greater than or equal to 2, got 1",
    "study examples L0H0,L3H0 --source=text.txt": "L3H0 is not a head; name heads from L0H0 to",
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
    "formats exprot": "export, import; did you mean export?",
    "formats export a": "export takes RUN FOLDER: python -m formats export",
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
