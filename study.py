"""Look inside the attention of a trained run, by default the newest, on any prompt.

python study.py trace      one layer step by step: formulas, shapes, numbers
python study.py verify     checks that what is shown is what was trained, and that nothing leaks
python study.py compare    what each choice in attention does, on this run's weights
python study.py heads      every head: its scores, and the loss without it
python study.py report     one HTML page with all of it, to open from disk
python study.py heads runs/my-run --prompt "ROMEO:"      another run, another text
python study.py trace --help                             every flag of a verb
"""

import signal

if __name__ == "__main__":  # Ctrl-C ends at once and quietly, also while libraries are loaded
    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:  # as under nohup
        signal.signal(signal.SIGINT, signal.SIG_DFL)

import common.start  # noqa: F401 - loads PyTorch

# isort: split
import sys
from collections.abc import Callable
from typing import Any

from common.errors import UserError, command
from configs.load import build, nearest, read_command_line
from lens.compare import Compare, compare
from lens.heads import Heads, heads
from lens.report import Report, report
from lens.trace import Trace, trace
from lens.verify import Verify, verify
from training.runtime import fit_threads

VERBS: dict[str, tuple[type, Callable[[str | None, Any], int]]] = {
    "trace": (Trace, trace),
    "verify": (Verify, verify),
    "compare": (Compare, compare),
    "heads": (Heads, heads),
    "report": (Report, report),
}


@command
def main(argv: list[str]) -> int:
    """Read the verb, the run and the flags."""
    if argv[:1] in (["--help"], ["-h"]):
        print(__doc__)
        return 0
    if not argv or argv[0].startswith("-"):
        raise UserError(
            f"name a verb first: python study.py {' | '.join(VERBS)} [RUN] [--flag ...]"
        )
    verb, *rest = argv
    if verb not in VERBS:
        raise UserError(f"there is no verb {verb}{nearest(verb, VERBS)}")
    kind, study = VERBS[verb]
    usage = f"python study.py {verb} [RUN] [--flag VALUE ...]"
    description = "Studies the newest run, unless another is named."
    word, values = read_command_line({"": kind}, rest, usage, description)
    fit_threads()
    return study(word, build(kind, values[""]))


if __name__ == "__main__":
    sys.exit(main())
