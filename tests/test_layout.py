"""The layout: few entries at the root, imports in one direction, one start of every command."""

import ast
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT

# The rooms that each room may import. There is no circle.
ROOMS = {
    "common": "",
    "configs": "common",
    "model": "common configs",
    "data": "common configs",
    "training": "common configs model data",
    "formats": "common configs model data training",
    "lens": "common configs model data training formats page",
    "page": "common configs model data training",
    "benchmarks": "common configs model data training formats page lens",
    "docs": "common configs model data training formats page lens benchmarks",
}
COMMANDS = ["train.py", "sample.py", "study.py", "formats/__main__.py"]


def imported_rooms(path: Path) -> Iterator[str]:
    """Yield the first part of the name of each module that a file imports."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (name.name.split(".")[0] for name in node.names)
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            yield str(node.module).split(".")[0]


@pytest.mark.parametrize("room", ROOMS)
def test_room_imports_only_rooms_below_it(room: str) -> None:
    commands = {path.stem for path in ROOT.glob("*.py")}
    inside = {path.name for path in ROOT.iterdir()} | commands
    allowed = {room, *ROOMS[room].split(), *(commands if "lens" in ROOMS[room] else ())}
    for path in (ROOT / room).rglob("*.py"):
        others = {*imported_rooms(path)} & inside - allowed
        assert not others, f"{path.relative_to(ROOT)} imports {others}"
    for other in ROOMS[room].split():
        assert room not in ROOMS[other].split()


@pytest.mark.parametrize("name", COMMANDS)
def test_command_imports_common_start_first_and_no_room_beside_the_core(name: str) -> None:
    tree = ast.parse((ROOT / name).read_text(encoding="utf-8"))
    first, *_ = (node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom))
    assert ast.unparse(first) == "import common.start"
    assert not {*imported_rooms(ROOT / name)} & {"benchmarks", "docs", "tests"}


def test_root_has_at_most_17_entries_of_which_11_are_folders() -> None:
    """Of what git tracks, dot files apart."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode != 0:
        pytest.skip("this is not a clone")
    entries = {name.split("/")[0] for name in listed.stdout.split("\n") if name}
    shown = {name for name in entries if not name.startswith(".")}
    assert len(shown) <= 17 and sum((ROOT / name).is_dir() for name in shown) <= 11, shown
