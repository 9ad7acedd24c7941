"""The notebook runs from top to bottom, with a shorter training, and its stored output is whole."""

from pathlib import Path
from typing import Any

import nbclient
import nbformat

from tests.conftest import ROOT

NOTEBOOK = ROOT / "docs/colab.ipynb"
SHORT = {
    "!pip install -q -r requirements.txt": "",
    "--train.minutes 1": "--train.max_steps 3",
}


def shown(notebook: Any) -> list[set[str]]:
    """The kinds of output of each cell of code; none may be an error."""
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    kinds = [
        {kind for out in cell.outputs for kind in out.get("data", {out.output_type: 0})}
        for cell in cells
    ]
    assert not any("error" in each for each in kinds)
    return kinds


def test_it_runs_from_top_to_bottom(workplace: Path) -> None:
    for path in ROOT.iterdir():
        if path.name not in ("runs", "cache"):
            (workplace / path.name).symlink_to(path)
    notebook: Any = nbformat.read(NOTEBOOK, 4)  # type: ignore[no-untyped-call]
    stored = shown(notebook)
    for long, short in SHORT.items():
        assert sum(long in cell.source for cell in notebook.cells) == 1
        for cell in notebook.cells:
            cell.source = cell.source.replace(long, short)
    where = {"metadata": {"path": str(workplace)}}
    nbclient.NotebookClient(notebook, timeout=600, resources=where).execute()
    assert [kinds - {"stream"} for kinds in shown(notebook)] == [k - {"stream"} for k in stored]
    (cell,) = (
        cell for cell in notebook.cells if "show(" in cell.source and cell.cell_type == "code"
    )
    assert any("<iframe" in out.get("data", {}).get("text/html", "") for out in cell.outputs)
    printed = "".join(
        out.get("text", "") for cell in notebook.cells for out in cell.get("outputs", [])
    )
    assert "without L0H0,L0H1: " in printed and "L0H3 attends most to" in printed
