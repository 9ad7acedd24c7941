"""Study the attention of a trained run, by default the newest, on any prompt, or compare runs.

python study.py COMMAND [RUN] [--flag VALUE ...]
python study.py heads runs/my-run --prompt "ROMEO:"      another run, another text
python study.py runs [RUN ...]                           all runs, or some, best first
python study.py trace --help                             every flag of a command
"""

import common.start

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from common.errors import UserError, command
from configs.load import build, nearest, read_command_line
from lens.compare import Compare, compare
from lens.heads import Heads, heads
from lens.report import Report, report
from lens.runs import Runs, runs
from lens.tables import check_path, printed, save_tables
from lens.trace import Trace, trace
from lens.verify import Verify, verify

# The docstring of the flags' class describes the command.
COMMANDS: dict[str, tuple[type, Callable[[Any, Any], int]]] = {
    "trace": (Trace, trace),
    "verify": (Verify, verify),
    "compare": (Compare, compare),
    "heads": (Heads, heads),
    "report": (Report, report),
    "runs": (Runs, runs),
}


@command
def main(argv: list[str]) -> int:
    """Read the command, the run and the flags."""
    if argv[:1] in (["--help"], ["-h"]):
        print(__doc__)
        for name, (flags, _) in COMMANDS.items():
            print(f"{name:<9}{flags.__doc__}")
        return 0
    name, *rest = argv or [""]
    if name not in COMMANDS:
        raise UserError(f"name a command: {', '.join(COMMANDS)}{nearest(name, COMMANDS)}")
    flags, study = COMMANDS[name]
    run, limit, flag, mark = "RUN", 1, "json", f'{{"study":["{name}"'
    if name == "runs":
        run, limit, flag, mark = "RUN ...", sys.maxsize, "csv", 'run,"loss, '
    usage = f"python study.py {name} [{run}] [--flag VALUE ...]"
    names, values = read_command_line({"": flags}, rest, usage, f"{flags.__doc__}.", limit)
    options: Any = build(flags, values[""])
    path = getattr(options, flag, None)
    if path is not None:
        check_path(Path(path), f"--{flag}", mark.encode())
    printed.clear()
    code = study(names if name == "runs" else next(iter(names), None), options)
    if path is not None and printed:  # not if no run could be read
        save_tables(Path(path), argv)
    return code


if __name__ == "__main__":
    sys.exit(main())
