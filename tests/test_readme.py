"""Commands, code, links and figures in the README and the docs are correct."""

import csv
import importlib
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest

import study
import train
from configs.load import SECTIONS, read_command_line, read_config
from formats.__main__ import COMMANDS as CONVERSIONS
from formats.__main__ import main
from model.generate import Sampling
from tests.conftest import DEBUG, ROOT, make_run
from tests.test_layout import ROOMS
from tests.test_lessons import FENCED

FILES = [
    ROOT / "README.md",
    *(ROOT / ".github").glob("*.md"),
    *sorted((ROOT / "docs").rglob("*.md")),
]
PAGES = [path.read_text(encoding="utf-8") for path in FILES]
SHELL = "".join(block for page in PAGES for kind, block in FENCED.findall(page) if not kind)
FIGURES, TRIALS = (
    [*csv.DictReader((ROOT / "docs" / name).read_text("utf-8").splitlines())]
    for name in ("figures.csv", "trials.csv")
)
LINES = [*SHELL.splitlines(), *(ROOT / ".ci" / "run").read_text().splitlines()]
LINES += [row["command"] for row in FIGURES]
LINES += [f"python train.py {row['flags']}" for row in TRIALS]
COMMANDS = {
    line.removeprefix("$ ") for line in LINES if re.match(r"(\$ )?(python |torchrun )", line)
}


# Benchmarks that also take the flags of train.py
TRAINING = ("attention", "line_end", "overnight", "recipe", "time_to_loss")


@pytest.mark.parametrize(
    "words",
    [shlex.split(c.replace(r"$'\n'", "'\n'"), comments=True) for c in sorted(COMMANDS)],
    ids=" ".join,
)
def test_documented_command_parses(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    script, *argv = words[words.index("--") + 1 if words[0] == "torchrun" else 1 :]
    if script == "-m":
        script, *argv = argv
    if script == "pytest":
        assert all((ROOT / name).exists() for name in argv if name.endswith(".py")), argv
        return
    kind: Any = None
    if script in ("study.py", "formats"):
        command, *argv = argv
        kind = (study.COMMANDS if script == "study.py" else CONVERSIONS)[command].flags
    elif script.startswith("benchmarks.") or (ROOT / script).exists():
        kind = getattr(importlib.import_module(script.removesuffix(".py")), "Options", None)
    if kind is None or "--help" in argv:
        return  # test_load.py tests --help, and test_lessons.py runs lessons' scripts
    trains = script in ("train.py", *(f"benchmarks.{name}" for name in TRAINING))
    sections = {"": kind} | (SECTIONS if trains else {})
    if script == "sample.py":
        sections["."] = Sampling
    words, _, values = read_command_line(sections, argv, "", "", 9)
    if trains:
        read_config(values, next(iter(words), None))


def test_documented_python_runs(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gpt2 = make_run(Path("runs/gpt2"), positions="learned", qk_norm=False, block_size=24)
    pytest.importorskip("transformer_lens")
    assert main(["export", str(gpt2), "my-folder"]) == 0
    shutil.rmtree(gpt2)
    few = ["--train.max_steps=2", "--train.eval_tokens=999", "--train.sample_tokens=0"]
    assert train.main([DEBUG, "--run=my-run", *few]) == 0
    for file, page in zip(FILES, PAGES, strict=True):
        for kind, block in FENCED.findall(page):
            if kind == "python" and "learn" not in file.parts:
                exec(compile(block, file, "exec"), {})
    assert "torch.Size([1, 2, 23, 23])" in capsys.readouterr().out


def test_architecture_page_matches_the_code() -> None:
    """Listed files and names exist, and each folder is above those that it may import."""
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    (tree,) = (block for kind, block in FENCED.findall(page) if block.startswith("train.py"))
    commands, *folders = [line.split() for line in tree.splitlines()]
    order = [words[0].removesuffix("/") for words in folders]
    assert all((ROOT / name).exists() for name in commands + order)
    for room, below in ROOMS.items():
        assert all(order.index(room) < order.index(other) for other in below.split()), room
    added = re.findall(r"`(\w+)` in ([\w/]+)\.py", page)
    assert len(added) > 6
    for name, path in added:
        assert hasattr(importlib.import_module(path.replace("/", ".")), name), name


def test_figures_appear_on_their_pages() -> None:
    for row in FIGURES:
        number = rf"(?<![\d.,]){re.escape(row['number'])}(?!\d)"
        assert re.search(number, (ROOT / row["page"]).read_text("utf-8")), row


def test_links_images_and_paths_exist() -> None:
    checked = []
    for path, page in zip(FILES, PAGES, strict=True):
        checked += [path.parent / name for name in re.findall(r"\]\((?!https://)([^)#]+)", page)]
        named = re.findall(r"`([a-z]+/[\w/]+\.(?:py|c|js|yaml|csv))`", page)
        checked += [ROOT / name for name in named]
    assert len(checked) > 30
    assert [path for path in checked if not path.exists()] == []
