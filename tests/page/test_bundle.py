"""The page's modules: joined into one script, loaded one by one, and who imports whom."""

import re
from pathlib import Path

import pytest

from page.bundle import IMPORT, bundle
from page.html import PARTS

MODULES = sorted(PARTS.rglob("*.js"))


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('import { two } from "./other.js";', "imports two: not an export of other.js"),
        ('import { one, one } from "./other.js";', "imports one twice"),
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


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.name)
def test_imports_point_one_way_and_are_used(path: Path) -> None:
    """What computes could run in a worker: it imports nothing that draws, and has no document."""
    text = path.read_text(encoding="utf-8")
    body = IMPORT.sub("", text)
    for names, source in IMPORT.findall(text):
        for name in re.findall(r"[\w$]+", names):
            assert re.search(rf"(?<![\w$]){re.escape(name)}(?![\w$])", body), name
        if path.parent.name == "engine":
            assert (path.parent / source).resolve().parent == path.parent
    if path.parent.name == "engine":
        assert not re.search(r"\b(document|window|location|globalThis)\.", body)
