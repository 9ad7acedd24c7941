"""The verb report: one HTML page with all of it, to open from disk."""

from dataclasses import dataclass
from pathlib import Path

from common.atomic import write_atomically
from common.errors import UserError, printable
from lens.report.data import report_data
from lens.report.page import MARK, page
from lens.subject import MeasureOptions, Subject


@dataclass(frozen=True)
class Report(MeasureOptions):
    """One HTML page, to open from disk"""

    out: str | None = None
    """The page's file; without it, report.html in the run's folder."""


def report(word: str | None, options: Report) -> int:
    """Write the page."""
    subject = Subject(word, options)
    path = subject.run / "report.html" if options.out is None else Path(options.out)
    if not path.parent.is_dir() or path.is_dir():
        raise UserError(f"--out {options.out!r} should name a file in a folder that is there")
    if path.exists() and not path.read_bytes().startswith(MARK.encode()):
        raise UserError(f"{path} exists and is not a report; name another file with --out")
    data = report_data(subject, subject.sequences(options.sequences))
    content = page(data).encode()
    write_atomically(path, content)
    print(f"{printable(str(path))}, {len(content) / 1e6:.1f} MB: open it in a browser")
    failed = sum(check["verdict"] == "failed" for check in data["checks"])
    if failed:
        run = printable(str(subject.run))
        print(f"note: {failed} checks failed; see python study.py verify {run}")
    return 0
