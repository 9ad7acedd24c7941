"""Tables fit the terminal, and tokens as_text whitespace and control characters."""

import pytest

from lens.tables import Table, as_text, visible

ROWS = [["name", "first", "second", "x"], ["a", "1", "2", "3"], ["日本", "4", "5", "6"]]


def test_table_is_aligned_and_fits_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Columns that do not fit are printed below, with the name of each row repeated."""
    assert str(Table(ROWS, words=2)).splitlines() == [
        "name  first  second  x",
        "----  -----  ------  -",
        "a     1           2  3",
        "日本  4           5  6",
    ]
    for columns, (length, part) in {"22": (4, 4), "19": (9, 3), "14": (14, 2)}.items():
        monkeypatch.setenv("COLUMNS", columns)
        lines = str(Table(ROWS)).splitlines()
        assert len(lines) == length and lines[0].split() == ROWS[0][:part]
        assert lines[-1].split()[0] == "日本" and lines[-1].split()[-1] == "6"


def test_whitespace_and_control_characters_are_visible() -> None:
    assert as_text("x" * 51, "") == "x" * 49 + "…"
    assert visible(" a\n\t\x1b\u202e") == "␣a↵⇥\\x1b\\u202e"
