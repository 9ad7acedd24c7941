"""What a person can get wrong on the way in: one clear line, exit code 2, nothing left behind.

(Flags and config files are in configs/test_load.py, resuming in test_train.py; here are the rest.)
"""

import socket
from pathlib import Path

import pytest

import sample
import study
import train
from benchmarks import compare, page
from tests.conftest import DEBUG, ROOT

COMMANDS = {
    "train": train.main,
    "sample": sample.main,
    "study": study.main,
    "compare": compare.main,
    "page": page.main,
}
LINES = {  # what is typed, and the line that it ends with
    "train --data.source=short.txt": "the splits have [8, 1, 0] tokens, but a sequence has 129",
    "train --data.source=\udcff.txt": "--data.source must be a valid",
    "sample": "there is no run in runs/ yet",
    "study tarce": "name a command: trace, verify, compare, heads, report; did you mean trace?",
    "compare a": "there is no run a",
    "page absent.html": "no report given; name the file that python study.py report wrote",
}


@pytest.mark.parametrize("words", LINES)
def test_a_command_ends_with_one_line(
    workplace: Path, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (workplace / "short.txt").write_text("too short")
    command, *argv = words.split()
    assert COMMANDS[command](argv) == 2
    said = capsys.readouterr().err
    assert said.splitlines()[-1].startswith(f"error: {LINES[words]}")
    assert not Path("runs").exists()


@pytest.mark.slow
def test_nothing_is_fetched_unless_a_config_names_the_hub(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def no_network(*args: object, **kwargs: object) -> None:
        raise AssertionError("something reaches for the network")

    monkeypatch.setattr(socket.socket, "connect", no_network)
    monkeypatch.setattr(socket, "getaddrinfo", no_network)
    short = [f"--data.source={ROOT / 'README.md'}", "--train.max_steps=2"]
    assert train.main([DEBUG, *short, "--run=a"]) == 0
    assert train.main(["--resume=a", "--train.max_steps=3"]) == 0
    assert sample.main(["--max_new_tokens=2"]) == 0
    assert study.main(["report", "--sequences=2"]) == 0
    assert train.main([DEBUG, "--data.source=hub:nobody/nothing"]) == 2
    assert "hub:nobody/nothing could not be loaded" in capsys.readouterr().err, "and this one does"
