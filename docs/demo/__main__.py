"""Write the playground, docs/demo/playground.html.

python -m docs.demo

The other pages are reports of runs. Two of them are in the repository; make one again if what it
shows changes, and with it the head and the position in the link to it in index.html:

python train.py configs/tasks/stories.yaml --train.snapshots 8 --run demo-stories
python study.py report demo-stories --max_mb 1 --out docs/demo/stories.html --prompt \\
    "$(python -c 'from docs.demo.__main__ import STORY; print(STORY)')"

python train.py --model.n_layer 2 --model.n_embd 64 --train.max_steps 1500 --train.threads 1 \\
    --train.snapshots 8 --run demo-manual
python study.py report demo-manual --max_mb 1.5 --out docs/demo/manual.html --prompt \\
    "$(python -c 'from docs.pictures import LINES; print(LINES)')"

induction.html is made by .github/workflows/pages.yml when it publishes the pages.
"""

import sys
from pathlib import Path

from page.playground import make_playground

FOLDER = Path(__file__).parent
STORY = (
    "The dog follows Ben . The cat watches Anna . The pig likes Tom . The cat still watches Anna . "
    "Now the dog follows Eva . The pig still likes Tom . Now the cat watches Ben . "
    "The dog still follows"
)


def main() -> int:
    """Write the page."""
    (FOLDER / "playground.html").write_text(make_playground(), encoding="utf-8", newline="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
