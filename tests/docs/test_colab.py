"""The Colab notebook runs to the end, with less training, and its stored output is complete."""

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT

nbclient, nbformat = map(pytest.importorskip, ("nbclient", "nbformat"))

NOTEBOOK = ROOT / "docs/colab.ipynb"
SHORT = {
    "!python -m pip install -q .": "",
    "!python train.py": "%run train.py",  # without importing PyTorch again
    "--train.minutes 1": "--train.max_steps 1 --train.eval_tokens 99 --model.n_layer 1",
    "max_mb=2": "sequences=2",
}


def output_kinds(notebook: Any) -> list[set[str]]:
    """Return the kinds of output of each code cell, except printed text."""
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    return [
        {kind for out in cell.outputs for kind in out.get("data", {out.output_type: 0})}
        - {"stream"}
        for cell in cells
    ]


def test_notebook_matches_stored_output(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    others = os.environ["PATH"].replace(os.path.dirname(sys.executable), "")
    monkeypatch.setenv("PATH", others)  # as if the environment were not activated
    for path in ROOT.iterdir():
        if path.name not in ("runs", "cache"):
            (workplace / path.name).symlink_to(path)
    notebook = nbformat.read(NOTEBOOK, 4)
    stored = output_kinds(notebook)
    for long, short in SHORT.items():
        assert sum(long in cell.source for cell in notebook.cells) == 1
        for cell in notebook.cells:
            cell.source = cell.source.replace(long, short)
    where = {"metadata": {"path": str(workplace)}}
    nbclient.NotebookClient(notebook, timeout=600, resources=where).execute()
    assert output_kinds(notebook) == stored and "error" not in set().union(*stored)
    printed = str([cell.get("outputs") for cell in notebook.cells])
    for part in ("<iframe", "without L0H0,L0H1: ", "L0H3 attends most to"):
        assert part in printed
