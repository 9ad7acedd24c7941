"""The commands of the lessons run, in shortened form, and print the output that is shown."""

import glob
import os
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import study
import train
from tests.conftest import ROOT

LESSON_MEASURE = ROOT / "docs/learn/14_measure.md"
TOURS = [ROOT / "docs" / name for name in ("induction.md", "line_end.md")]
PAGES = [*sorted((ROOT / "docs/learn").glob("[0-9]*.md")), *TOURS]
SOLUTIONS = (ROOT / "docs/learn/solutions.md").read_text(encoding="utf-8")
FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SHORT = ["--train.max_steps=2", "--train.eval_every=2", "--train.sample_tokens=1"]
SHORT += ["--model.n_embd=16", "--data.val_fraction=0.01", "--train.eval_tokens=999"]


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def share_cache(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Count the n-grams of the manual once for all lessons; evaluate few sequences of a task."""
    monkeypatch.setenv("GLASSGPT_CACHE", str(cache))
    monkeypatch.setattr("data.batches.HELD_OUT", 64)


def read(page: Path) -> str:
    """Return the lesson and the answer to its exercise."""
    number = page.stem.split("_")[0]
    answer = re.findall(rf"^## {number}\. .*?(?=^## |\Z)", SOLUTIONS, re.MULTILINE | re.DOTALL)
    return page.read_text(encoding="utf-8") + "".join(answer)


def commands(page: str) -> list[list[str]]:
    """Return the arguments of each `python` in unlabeled code blocks, as bash expands them."""
    script = "".join(block for kind, block in FENCED.findall(page) if not kind)
    stubs = 'python() { printf "%s\\t" "$@"; printf "\\0"; }\npip() { :; }\n'
    output = subprocess.check_output(["bash", "-c", stubs + script], text=True)
    return [words.rstrip("\t").split("\t") for words in output.split("\0")[:-1]]


def run_name(words: list[str]) -> str:
    return words[words.index("--run") + 1]


def run(words: list[str], block_size: int = 64) -> None:
    """Do what the command does, in shortened form.

    Args:
        block_size: replaces the default's, and not that of a config file.
    """
    script, *argv = words
    if script == "train.py":
        if Path("runs", run_name(words)).exists():
            return  # already trained for another command
        sizes = [f"--model.block_size={block_size}"] if argv[0].startswith("--") else []
        assert train.main([*argv, *sizes, *SHORT]) == 0
    elif script == "study.py":
        if "never_masked" in argv and "--steps" not in argv:
            argv += ["--steps", "2"]
        if argv[0] in ("heads", "scores", "token", "report"):
            argv += ["--sequences", "8" if argv[0] == "report" else "2"]
        argv = [run for word in argv for run in sorted(glob.glob(word)) or [word]]
        assert study.main([word if word != "50" else "2" for word in argv]) == 0
    else:  # a script of the lesson
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "argv", words)
            runpy.run_path(script)


def skeleton(line: str) -> list[str]:
    """Return the words of a line with # for each number, without words that have no letters."""
    line = re.sub(r"  # .*", "", line)  # the lesson's comment
    # Drop what depends on training: samples, baselines beaten, paths, and what neurons and layers
    # predict.
    line = re.sub(r"^\S+ +\.\.\. .*-> .*", "", line)
    line = re.sub(r"(generates:|beats|neuron +\d+) .*|  (\S ){9}.*", r"\1", line)
    words = [re.sub(r"\d[\d.,]*", "#", word) for word in line.split()]
    return [word for word in words if re.search(r"[^\W_]", word)]


def assert_shown_output_is_printed(page: str, printed: str) -> None:
    lines = [{*skeleton(line)} for line in printed.splitlines()]
    for kind, block in FENCED.findall(page):
        for line in block.splitlines() if kind == "text" else []:
            if not line.startswith(("    | ", "...")):  # skip samples and ellipses
                assert any({*skeleton(line)} <= words for words in lines), line


@pytest.mark.slow
def test_lesson_adds_an_activation_function(workplace: Path) -> None:
    """Apply the lesson's diff to copies of its files. The C decoder does not support the result."""
    page = LESSON_MEASURE.read_text(encoding="utf-8")
    (diff,) = (block for kind, block in FENCED.findall(page) if kind == "diff")
    for name, old, new in re.findall(r"--- (\S+)\n[ -](.*)\n\+(.*)\n", diff):
        file = workplace / name
        if not file.parent.exists():
            shutil.copytree(ROOT / file.parent.name, file.parent)
        before, after = file.read_text(encoding="utf-8").split(old)
        kept = f"{old}\n" if f"\n {old}" in diff else ""
        file.write_text(f"{before}{kept}{new}{after}", encoding="utf-8")
    script = """
import sample
from tests.test_lessons import LESSON_MEASURE, commands, run

for words in commands(LESSON_MEASURE.read_text(encoding="utf-8")):
    run(words)
sample.main(["after-1", "--max_new_tokens=5"])
"""
    python = [sys.executable, "-c", script]  # imports from the current folder first
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    result = subprocess.run(python, env=environment, capture_output=True, text=True)
    assert "note: decoding is not compiled" in result.stderr
    assert_shown_output_is_printed(page, result.stdout)


@pytest.mark.parametrize(
    "page", [p for p in PAGES if p != LESSON_MEASURE], ids=lambda page: page.stem
)
def test_lesson_commands_print_the_shown_output(
    page: Path, workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = read(page)
    shutil.copytree(ROOT / "configs", "configs")
    for kind, block in FENCED.findall(text):
        if kind == "python":  # a script; its first line is its name
            script = block.splitlines()[0].removeprefix("# ")
            block = block.replace("steps, C, H = 120", "steps, C, H = 2")
            block = block.replace("data, 256, seed", "data, 64, seed")
            Path(script).write_text(block, "utf-8")
        elif kind == "py":  # quoted from model/attention.py
            assert block in (ROOT / "model/attention.py").read_text(encoding="utf-8")
    size = 256 if page.stem == "16_line_end" else 64  # its script reads a text of 231 characters
    typed, named = commands(text), re.findall(r'"(.*?)"', text)
    for lesson in (each for each in PAGES if each != page):  # train their runs that this one uses
        for words in commands(lesson.read_text(encoding="utf-8")):
            new = words[0] == "train.py" and "--run" in words
            if new and any(run_name(words) in other for other in (*typed, named)):
                run(words, size)
    for words in typed:
        run(words, size)
    assert_shown_output_is_printed(text, capsys.readouterr().out)
