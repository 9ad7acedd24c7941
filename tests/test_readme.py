"""What the README and the docs say can be typed works."""

import importlib
import re
import shlex
import shutil
from pathlib import Path

import pytest

import sample
import study
import train
from configs.load import SECTIONS, build, make_parser, read_config, read_flags, split_positional

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
PAGES = [README, *(path.read_text(encoding="utf-8") for path in (ROOT / "docs").glob("*.md"))]
COMMANDS = [
    shlex.split(line, comments=True)
    for page in PAGES
    for block in re.findall(r"^```\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    for line in block.splitlines()
    if line.startswith("python ")
]


def test_there_is_something_to_type() -> None:
    scripts = [words[1] for words in COMMANDS]
    assert scripts.count("train.py") >= 6 and scripts.count("sample.py") >= 2
    assert scripts.count("study.py") >= 5


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_commands_are_understood(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    _, script, *argv = words
    if "--help" in argv:
        return  # test_load.py reads the help
    words, flags = split_positional(argv, most=len(argv))
    if script == "-m":
        if words[0] == "pytest":
            return
        module = importlib.import_module(words[0])
        own = {"": module.Options} if hasattr(module, "Options") else {}
        read_flags(make_parser(own | SECTIONS), flags)
        if len(words) > 1 and words[1].startswith("configs/"):
            read_config(make_parser(own | SECTIONS), flags, words[1])
    elif script == "study.py":
        kind, _ = study.VERBS[words[0]]
        build(kind, read_flags(make_parser({"": kind}), flags))
    elif script == "train.py":
        parser = make_parser({"": train.Options} | SECTIONS)
        build(train.Options, read_flags(parser, flags))
        read_config(parser, flags, words[0] if words else None)
    else:
        build(sample.Options, read_flags(make_parser({"": sample.Options}), flags))


def test_the_python_in_it_runs(
    workplace: Path, debug_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(debug_run, workplace / "runs" / "debug")
    programs = [block for kind, block in BLOCKS if kind == "python"]
    assert programs
    for program in programs:
        exec(compile(program, "README.md", "exec"), {})
    assert "torch.Size([1, 2, 23, 23])" in capsys.readouterr().out


def test_the_files_it_maps_are_there() -> None:
    (tree,) = (block for kind, block in BLOCKS if block.startswith("train.py"))
    room = ""
    for line in tree.splitlines():
        name = line.split()[0] if line.strip() else ""
        if line.startswith(" "):
            assert (ROOT / room / name).exists(), name
        elif name:
            assert (ROOT / name).exists(), name
            room = name if name.endswith("/") else ""


def test_its_pictures_are_there() -> None:
    folders = {ROOT: README} | {
        path.parent: path.read_text(encoding="utf-8") for path in (ROOT / "docs").glob("ind*.md")
    }
    for folder, page in folders.items():
        pictures = re.findall(r"!\[[^]]+\]\(([^)]+)\)", page)
        assert len(pictures) >= 2
        assert all((folder / picture).is_file() for picture in pictures)
