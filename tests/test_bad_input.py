"""What a person can get wrong on the way in: one clear line, exit code 2, nothing left behind.

(Flags and config files are in test_malformed.py and configs/test_load.py, sampling is in
test_sample.py, resuming in test_train.py; here are the rest, and some as real commands.)
"""

import socket
from pathlib import Path

import pytest
import torch

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


BAD = [
    ([DEBUG, "--data.source=absent.txt"], "no text at absent.txt"),
    ([DEBUG, "--data.source=*.md"], "no text at *.md"),
    ([DEBUG, "--data.source=folder"], "folder is a folder; name the files in it"),
    ([DEBUG, "--data.source=empty.txt"], "empty.txt is empty; name a source with text in it"),
    ([DEBUG, "--data.source=latin1.txt"], "latin1.txt is not UTF-8 text: byte 3 is 0xe9"),
    ([DEBUG, "--data.source=short.txt"], "the training split has 8 tokens, and a sequence needs"),
    ([DEBUG, "--data.source=uneven.txt"], "the validation split has 16 tokens"),
    ([DEBUG, "--data.source=repeat"], "--model.block_size 32 has no room for two copies"),
    ([DEBUG, "--data.cache_dir=fine.txt"], "error: Not a directory: "),
    ([DEBUG, "--train.device=mps"], "there is no mps device here"),
    ([DEBUG, "--model.n_embd=100000"], "--model.n_embd 100000, --model.block_size"),
    ([DEBUG, "--train.batch_size=9999999999999"], "--train.batch_size 9999999999999 with"),
    ([DEBUG, "fine.txt"], "one word without a flag is expected, got: "),
    (["fine.txt"], "fine.txt: a config has the sections data, model, train, this has none"),
    (["folder"], "there is no config file folder"),
    (["--init_from=gpt2"], "nanoGPT's --init_from=gpt2 is here: only runs that were trained here"),
    (["latin1.txt"], "latin1.txt is not a config"),
]


@pytest.mark.parametrize(("argv", "message"), BAD, ids=lambda value: str(value)[-40:])
def test_training_refuses_in_one_line(
    texts: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    argv: list[str],
    message: str,
) -> None:
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert train.main(argv) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.startswith("error: ") and error.count("\n") == 1
    assert not (texts / "runs").exists()


REAL = {
    "train.py --model.n_layer null": "--model.n_layer must be a whole number, got 'null'",
    "train.py --n_layer=2": "--n_layer=2 is a flag of nanoGPT; here: --model.n_layer",
    "train.py --model.n_head 3": "--model.n_embd 128 must be divisible by n_head 3",
    "train.py latin1.txt": "latin1.txt is not a config",
    "train.py one.yaml two.yaml": "one word without a flag is expected, got: one.yaml two.yaml",
    "train.py --data.source hub:nobody/nothing": "could not load hub:nobody/nothing",
    "train.py --resume folder": "folder is not a run",
    "train.py --run a/b": "--run 'a/b' must be a name for a folder",
    "train.py --evaluate a --run b": "--evaluate takes a run as it is: no --run",
    "train.py --init_from fine.txt": "fine.txt is a file; name the run's folder",
    "train.py --data.source repeat --data.test_fraction=0.1": "--data.source repeat has no end",
    "sample.py": "there is no run in runs/ yet",
    "sample.py --top_p 0": "--top_p must be in (0, 1], got 0",
    "study.py": "name a verb first",
    "study.py tarce": "there is no verb tarce; did you mean trace?",
    "study.py heads": "there is no run in runs/ yet",
    "-m benchmarks.compare a": "there is nothing to compare",
    "-m benchmarks.throughput --repetitions 0": "--repetitions must be in [1, inf), got 0",
    "-m benchmarks.scaling --only nothing": "--only nothing: there are processes, context, width",
    "-m benchmarks.endurance --minutes=-1": "--minutes must be in [0, inf), got -1.0",
    "-m benchmarks.recipe --min_lr 1": "--min_lr is a flag of nanoGPT; here: --train.final_lr_fr",
}


@pytest.mark.parametrize("words", REAL)
def test_real_commands_end_with_one_line(texts: Path, words: str) -> None:
    code, _, said = run_command(words.split(), HF_HUB_OFFLINE="1")
    assert code == 2
    assert said.splitlines()[-1].startswith(f"error: {REAL[words]}")
    assert "Traceback" not in said and "usage:" not in said
    assert not Path("runs").exists()


def test_folders_that_cannot_be_written_are_named(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (workplace / "runs").write_text("a file where a folder should be")
    assert train.main([DEBUG]) == 2
    assert capsys.readouterr().err.startswith("error: ")


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


def test_ctrl_c_before_the_loop_is_quiet(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(train, "open_batches", interrupt)
    assert train.main([DEBUG]) == 130
    assert capsys.readouterr().err == "\ninterrupted\n"


def test_help_is_not_an_error(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for main in (train.main, sample.main):
        with pytest.raises(SystemExit) as exit_:
            main(["--help"])
        assert exit_.value.code == 0
        assert capsys.readouterr().out.startswith("usage: python ")
