"""Study the attention of a trained run, by default the newest, on any prompt, or compare runs.

python study.py COMMAND [RUN] [--flag VALUE ...]
python study.py heads runs/my-run --prompt "ROMEO:"      another run, another text
python study.py runs [RUN...]                            all runs, or some, best first
python study.py trace --help                             every flag of a command
"""

import common.start

import sys
from pathlib import Path

from pydantic_core import to_json

from common.atomic import write_atomically
from common.errors import UserError, command
from configs.load import Command, read_subcommand
from lens.compare import Compare, compare
from lens.evaluate import Evaluate, evaluate_splits
from lens.heads import Heads, heads
from lens.ngrams import Ngrams, ngrams
from lens.paths import Paths, paths
from lens.report import Report, report
from lens.runs import Runs, runs
from lens.tables import Table, check_path
from lens.trace import Trace, trace
from lens.verify import Verify, verify

# Each yields what to print: texts and tables.
COMMANDS = {
    "evaluate": Command(Evaluate, evaluate_splits, "[RUN]"),
    "trace": Command(Trace, trace, "[RUN]"),
    "verify": Command(Verify, verify, "[RUN]"),
    "compare": Command(Compare, compare, "[RUN]"),
    "heads": Command(Heads, heads, "[RUN]"),
    "ngrams": Command(Ngrams, ngrams, "[RUN]"),
    "paths": Command(Paths, paths, "[RUN]"),
    "report": Command(Report, report, "[RUN]"),
    "runs": Command(Runs, runs, "[RUN...]"),
}


@command
def main(argv: list[str]) -> int:
    """Read the command, the run and the flags."""
    if argv[:1] in (["--help"], ["-h"]):
        print(__doc__)
        for name, each in COMMANDS.items():
            print(f"{name:<9}{each.flags.__doc__}")
        return 0
    name, words, options = read_subcommand(COMMANDS, argv, "python study.py")
    path, tables, titles, title = getattr(options, "json", None), list[Table](), list[str](), ""
    if path is not None:
        check_path("--json", Path(path), ".json")
        if Path(path).exists() and not Path(path).read_bytes().startswith(b'{"study":'):
            raise UserError(f"--json {path} was not written by study.py; choose another name")
    subject = words if name == "runs" else next(iter(words), None)
    for i, part in enumerate(COMMANDS[name].do(subject, options)):
        print(part if i == 0 else f"\n{part}")
        if isinstance(part, Table):
            tables.append(part)
            titles.append(title)
        title = "" if isinstance(part, Table) else part  # the line above a table
    if path is not None:
        rows = [table.rows for table in tables]
        results = {"study": argv, "titles": titles, "tables": rows}
        write_atomically(Path(path), to_json(results, inf_nan_mode="null"))
    return int(any(table.failed for table in tables))


if __name__ == "__main__":
    sys.exit(main())
