"""What a person can get wrong on the way in: one clear line, exit code 2, nothing left behind.

(Flags and config files are in test_malformed.py and configs/test_load.py, sampling is in
test_sample.py, resuming in test_train.py; here are the rest, and some as real commands.)
"""

import socket
from pathlib import Path

import pytest

import sample
import study
import train
from tests.jobs import run_command

ROOT = Path(__file__).parent.parent
DEBUG = str(ROOT / "configs" / "debug.yaml")


@pytest.fixture
def texts(workplace: Path) -> Path:
    (workplace / "empty.txt").touch()
    (workplace / "latin1.txt").write_bytes("caf\u00e9".encode("latin-1") * 200)
    (workplace / "short.txt").write_text("too short")
    (workplace / "uneven.txt").write_text("long enough for one split only " * 5)
    (workplace / "fine.txt").write_text("a text that is fine\n" * 100)
    (workplace / "folder").mkdir()
    return workplace


# What is behind `python`, and the line that it ends with.
REAL = {
    "train.py --data.source=*.md": "no text at *.md",
    "train.py --data.source=latin1.txt": "latin1.txt is not UTF-8 text: byte 3 is 0xe9",
    "train.py --data.source=empty.txt": "empty.txt is empty; name a source with text in it",
    "train.py --data.source=short.txt": "the training split has 8 tokens, and a sequence needs",
    "train.py --data.source=uneven.txt": "the validation split has 16 tokens",
    "train.py --data.source=hub:nobody/nothing": "could not load hub:nobody/nothing",
    "train.py --model.n_embd=100000": "--model.n_layer 4, --model.n_embd 100000, --model.block_",
    "train.py --model.n_head 3": "--model.n_embd 128 must be divisible by n_head 3",
    "train.py --model.n_layer null": "--model.n_layer must be a valid integer, got None",
    "train.py latin1.txt": "latin1.txt is not a config",
    "train.py folder": "there is no config file folder",
    "train.py one.yaml two.yaml": "one word without a flag expected, got: one.yaml two.yaml",
    "train.py --resume folder": "folder is not a run",
    "train.py --run a/b": "--run 'a/b' must be a name for a folder",
    "train.py --init_from gpt2": "there is no run gpt2",
    "sample.py": "there is no run in runs/ yet",
    "sample.py --top_p 0": "--top_p must be greater than 0, got 0",
    "study.py": "name a verb first",
    "study.py tarce": "there is no verb tarce; did you mean trace?",
    "study.py heads": "there is no run in runs/ yet",
    "-m benchmarks.compare a": "there is no run a",
    "-m benchmarks.page absent.html": "name a file that python study.py report has written",
    "-m benchmarks.throughput --repetitions 0": "--repetitions must be greater",
    "-m benchmarks.throughput --only nothing": "--only nothing: the rows are nanoGPT's 4 x 128",
}


@pytest.mark.parametrize("words", REAL)
def test_real_commands_end_with_one_line(texts: Path, words: str) -> None:
    code, _, said = run_command(words.split(), HF_HUB_OFFLINE="1")
    assert code == 2
    assert said.splitlines()[-1].startswith(f"error: {REAL[words]}")
    assert "Traceback" not in said and "usage:" not in said
    assert not Path("runs").exists()


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
    page = Path("runs/a/report.html").read_text()
    assert "http://" not in page.replace("http://www.w3.org/", "") and "https://" not in page
    assert train.main([DEBUG, "--data.source=hub:nobody/nothing"]) == 2
    assert "could not load hub:nobody/nothing" in capsys.readouterr().err, "and this one does"


def test_help_is_not_an_error(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for main in (train.main, sample.main):
        with pytest.raises(SystemExit) as exit_:
            main(["--help"])
        assert exit_.value.code == 0
        assert capsys.readouterr().out.startswith("usage: python ")
