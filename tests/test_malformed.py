"""Every flag of every command and every field of a config file with each mistake that its type
makes possible and with hostile text, as in a stranger's run: exit code 2 and one short line that
names the culprit, or text that is taken as it is. Nothing is left behind, nothing hangs."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

import sample
import study
import train
from configs import load
from tests.conftest import DEBUG

Main = Callable[[list[str]], int]
HOSTILE = {
    "50,000 brackets": "[" * 50_000,
    "300 digits": "9" * 300,
    "10,000 digits": "-" + "9" * 10_000,
    "a tag that runs": "!!python/object/apply:os.system ['touch exploded']",
    "100,000 characters": "a" * 100_000,
    "escape sequences": "\x1b]0;owned\x07\x1b[31m\u202e" * 500,
    "templates": "%s %(x)s {0} ${HOME} `touch exploded`",
}


def test_a_folders_name_never_acts_on_the_terminal(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (workplace / "fine.txt").write_text("a text to study with enough of it\n" * 40)
    flags = ["--model.n_embd=8", "--train.sample_tokens=0", "--train.max_steps=1"]
    assert train.main([DEBUG, *flags, "--data.source=fine.txt", "--run=a"]) == 0
    odd = "\x1b]0;owned\x07\x1b[31m \u202e \n"
    os.rename("runs/a", f"runs/{odd}")
    commands: list[tuple[Main, list[str]]] = [
        (sample.main, ["--max_new_tokens=1"]),
        *((study.main, [verb, odd, "--prompt=a text"]) for verb in ("trace", "verify")),
        *((study.main, [verb, odd, "--sequences=2"]) for verb in ("heads", "report")),
        (study.main, ["compare", odd, "--sequences=2", "--steps=0"]),
        (train.main, [f"--evaluate={odd}"]),
        (train.main, [f"--init_from={odd}", "--run=other"]),
        (train.main, [f"--resume={odd}"]),
        (train.main, [f"--resume={odd}", "--train.max_steps=2"]),
    ]
    capsys.readouterr()
    for main, argv in commands:
        assert main(argv) == 0
        out, err = capsys.readouterr()
        shown = (out + err).replace("\r\033[K", "")  # how a line of progress is erased
        assert not {"\x1b", "\x07", "\u202e"} & set(shown), argv


def test_text_is_taken_as_it_is(workplace: Path) -> None:
    """It names a run, a text and a separator; YAML and JSON give it back."""
    for text in (HOSTILE["templates"].replace("/", "-"), "&a [*a, *a]", "null"):
        Path(text).write_text("a text that is fine\n" * 40)
        flags = [f"--data.separator={text}", "--model.n_embd=8"]
        flags += ["--train.max_steps=1", "--train.sample_tokens=0", "--data.tokenizer=byte"]
        files = [f"--data.source={text}"] * 2
        assert train.main([DEBUG, *files, *flags, f"--run=run {text}"]) == 0
        assert {text, "cache", "runs"} <= set(os.listdir())
        read = load.read_yaml(Path("runs", f"run {text}", "config.yaml"))["data"]
        assert read["source"] == [text, text] and read["separator"] == text
        assert train.main([f"--resume=run {text}", "--train.max_steps=2"]) == 0
        assert sample.main([f"run {text}", f"--prompt={text}", "--max_new_tokens=1"]) == 0
    assert not Path("exploded").exists()
