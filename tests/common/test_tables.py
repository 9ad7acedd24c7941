"""Tables are aligned; white space and controls in tokens can be seen."""

import pytest

from common.tables import print_table, visible

ROWS = [["name", "first", "second", "x"], ["a", "1", "2", "3"], ["日本", "4", "5", "6"]]


def test_a_table_is_aligned(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(ROWS, words=2)
    assert capsys.readouterr().out.splitlines() == [
        "name  first  second  x",
        "----  -----  ------  -",
        "a     1           2  3",
        "日本  4           5  6",
    ]


def test_a_token_can_be_seen() -> None:
    assert visible(" a\n\t\x1b\u202e") == "␣a↵⇥\\x1b\\u202e"
