"""Study the attention of a trained run, by default the newest, on any prompt, or compare runs.

python study.py COMMAND [RUN] [--flag VALUE ...]
python study.py heads runs/my-run --prompt "ROMEO:"      another run, another text
python study.py runs [RUN ...]                           all runs, or some, best first
python study.py trace --help                             every flag of a command
"""

import common.start

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pydantic_core import to_json

from common.atomic import write_atomically
from common.errors import UserError, command
from configs.load import build, nearest, read_command_line
from lens.compare import Compare, compare
from lens.counting import Counting, counting
from lens.heads import Heads, heads
from lens.report import Report, report
from lens.runs import Runs, runs
from lens.tables import Table, check_path
from lens.trace import Trace, trace
from lens.verify import Verify, verify

# The docstring of the flags' class describes the command, which yields what to print.
COMMANDS: dict[str, tuple[type, Callable[[Any, Any], Iterator[str | Table]]]] = {
    "trace": (Trace, trace),
    "verify": (Verify, verify),
    "compare": (Compare, compare),
    "heads": (Heads, heads),
    "counting": (Counting, counting),
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
    run, limit = ("RUN ...", sys.maxsize) if name == "runs" else ("RUN", 1)
    usage = f"python study.py {name} [{run}] [--flag VALUE ...]"
    names, values = read_command_line({"": flags}, rest, usage, f"{flags.__doc__}.", limit)
    options: Any = build(flags, values[""])
    path, tables = getattr(options, "json", None), []
    check_path(path, "--json", f'{{"study":["{name}"'.encode())
    for i, part in enumerate(study(names if name == "runs" else next(iter(names), None), options)):
        print(part if i == 0 else f"\n{part}")
        if isinstance(part, Table):
            tables.append(part)
    if path is not None:
        results = {"study": argv, "tables": [table.rows for table in tables]}
        write_atomically(Path(path), to_json(results, inf_nan_mode="null"))
    return int(any(table.failed for table in tables))


if __name__ == "__main__":
    sys.exit(main())
