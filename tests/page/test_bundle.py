"""The page's modules: joined into one script, loaded one by one, and who imports whom."""

import re
from pathlib import Path

import pytest

from page.bundle import IMPORT, bundle
from page.html import PARTS

MODULES = sorted(PARTS.rglob("*.js"))
ROOMS = ("engine", "report", "playground")  # and what both pages share


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('import { two } from "./other.js";', "imports two: not an export of other.js"),
        ('import "./absent.js";', "absent.js, which does not exist"),
        ('import "./circle.js";', "main.js imports circle.js imports main.js"),
        ('import one from "./other.js";', "is not a form of import"),
    ],
)
def test_wrong_imports_are_errors(line: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / "other.js").write_text("const two = 2;\nexport const one = 1;\n")
    (tmp_path / "circle.js").write_text('import "./main.js";\n')
    (tmp_path / "main.js").write_text(f"{line}\n")
    with pytest.raises(ImportError, match=re.escape(reason)):
        bundle(tmp_path / "main.js")


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PARTS)))
def test_imports_point_one_way_and_are_used(path: Path) -> None:
    """What computes could run in a worker: it imports nothing that draws, and has no document. What
    both pages share imports neither."""
    room = path.relative_to(PARTS).parts[0]
    below = {"engine": ["engine"]}.get(room, ["engine", "views", *{room} & {*ROOMS}])
    text = path.read_text(encoding="utf-8")
    body = IMPORT.sub("", text)
    for names, source in IMPORT.findall(text):
        for name in re.findall(r"[\w$]+", names):
            assert re.search(rf"(?<![\w$]){re.escape(name)}(?![\w$])", body), name
        other = (path.parent / source).resolve().relative_to(PARTS).parts
        assert other[0] in below or (len(other) == 1 and room != "engine")
    if room == "engine":
        assert not re.search(r"\b(document|window|location|globalThis)\.", body)
