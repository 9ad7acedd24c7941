"""Make the pages of the demo: the playground, and two runs so small that many snapshots fit into
3 MB.

python -m docs.demo

A run that is in runs/ already is resumed if it was stopped, and kept if it is over.
"""

import os
import sys
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # so that the runs repeat, however many cores there are

import study
import train
from page.html import make_playground

FOLDER = Path(__file__).parent
RUNS = {
    "induction": ["configs/tasks/induction.yaml", "--model.n_embd=56"],
    "manual": [
        "--model.n_layer=3",
        "--model.n_embd=40",
        "--model.block_size=64",
        "--train.max_steps=1500",
    ],
}


def main() -> int:
    """Train what is not trained, and write all pages."""
    (FOLDER / "playground.html").write_text(make_playground(), encoding="utf-8", newline="\n")
    for name, flags in RUNS.items():
        run = Path("runs", f"demo-{name}")
        saved = (run / "last.safetensors").exists()
        page = ["report", str(run), "--max_mb=3", f"--out={FOLDER / name}.html"]
        page += ["--with_text"] * (name == "manual")  # whose license allows it, with the notice
        code = train.main(["--resume", str(run)] if saved else [*flags, "--run", run.name])
        if code or (code := study.main(page)):
            return code
    return 0


if __name__ == "__main__":
    sys.exit(main())
