"""Tables are texts: each cell as it stands in the file, or one line about what is wrong."""

import csv
import io
import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import data.sources
from common.errors import UserError
from configs.config import DataConfig
from data.corpus import load_text

# Words that readers of tables take for numbers, booleans or missing values
WORDS = [
    "NA",
    "N/A",
    "null",
    "None",
    "nan",
    "<NA>",
    "#N/A",
    "007",
    "1.50",
    "+5",
    "True",
    "2020-01-11",
]
cells = st.sampled_from(WORDS) | st.text(st.characters(codec="utf-8"))


def read(path: str, column: str | list[str] = "text", **options: Any) -> str:
    loaded = load_text(DataConfig(source=path, column=column, **options))
    return loaded.tokenizer.decode(loaded.tokens.tolist())


def csv_of(rows: list[dict[str, str]], delimiter: str = ",") -> bytes:
    file = io.StringIO()
    writer = csv.DictWriter(file, [*rows[0]], delimiter=delimiter)
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue().encode()


def parquet_of(rows: list[dict[str, str]]) -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), file)
    return file.getvalue()


KINDS = {
    "csv": csv_of,
    "TSV": lambda rows: csv_of(rows, "\t"),
    "jsonl": lambda rows: "".join(json.dumps(row) + "\n" for row in rows).encode(),
    "ndjson": lambda rows: "\n".join(json.dumps(row, ensure_ascii=False) for row in rows).encode(),
    "json": lambda rows: json.dumps(rows, indent=1).encode(),
    "chat.json": lambda rows: json.dumps({"name": "a", "tags": ["b"], "messages": rows}).encode(),
    "parquet": parquet_of,
}


@given(st.lists(st.tuples(cells, cells, cells), min_size=1, max_size=7))
@example([("NA", "0", "a\rb\r\nc\r"), ("", "", ""), ("\ufeff\u2028", ",\t;", '"\0\x85')])
def test_same_rows_are_the_same_text_in_every_format(
    workplace: Path, table: list[tuple[str, str, str]]
) -> None:
    rows = [{"who": who, "when": when, "said": said} for who, when, said in table]
    unix = [[re.sub(r"\r\n?", "\n", cell) for cell in row] for row in table]
    said = "\n".join(row[2] for row in unix)
    named = "--".join(": ".join(cell for cell in (row[0], row[2]) if cell) for row in unix)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(data.sources, "ROWS", 3)
        for kind, write in KINDS.items():
            path = Path(f"my [{kind}]::x.{kind}")
            path.write_bytes(write(rows) + b"\n" * (kind == "csv"))  # an empty line is not a row
            for column, separator, expected in (
                ("said", "", said),
                (["who", "said"], "--", named),
            ):
                if expected:
                    assert read(str(path), column, separator=separator) == expected, kind
    assert not Path("cache/hub").exists()


TELEGRAM = ["see ", {"type": "link", "text": "x.org"}, "!"]
TEXTS: dict[str, tuple[str, str]] = {  # name: content, text
    "numbers.json": (
        '[{"text": 70}, {"text": 1.50}, {"text": 1e400}, {"text": true}, "b"]',
        "70\n1.50\n1e400\ntrue\nb",
    ),
    "absent.jsonl": ('{"text": "a"}\n\n{"who": "b"}\n{"text": null}\n', "a\n\n"),
    "links.json": (
        json.dumps([{"text": TELEGRAM}, {"text": []}, {"text": "a"}]),
        "see x.org!\n\na",
    ),
    "two.json": ('{"people": [{"name": "a"}], "said": [{"text": "b"}, {"name": "c"}]}', "b\n"),
    "mark.csv": ('\ufeff"text",who\r\nb,c\r\n', "b"),
    "old.csv": ("who,text\ra,b\ra,c\r", "b\nc"),
    "semicolons.csv": ('\n"who";text\na,b;"c;d"\n', "c;d"),
    "commas.csv": ("who;is,text\na;b,c;d\n", "c;d"),
    "poem.csv": ("text\na\n\nb\n", "a\n\nb"),
    "long.csv": ("text\n" + "a" * 200_000, "a" * 200_000),
}


@pytest.mark.parametrize("name", TEXTS)
def test_cell_is_read_as_it_stands(workplace: Path, name: str) -> None:
    content, expected = TEXTS[name]
    Path(name).write_bytes(content.encode())
    assert read(name) == expected


MANY = "who,text\n" + "a,b\n" * 3
CHAT = json.dumps({"name": "a", "messages": [{"from": "b", "said": "c"}]})
MISTAKES: dict[str, tuple[str, str]] = {  # name: content, error
    "first.csv": ("who,text\na,b,\na,b\n", "row 2: the header has 2 cells, but this row 3; put"),
    "later.tsv": (
        "who\ttext\na\tb\n\na\n",
        r"row 4: .* 2 cells, but this row 1; .*'\\t' or a newline in quotes",
    ),
    "tabs.csv": ("who\ttext\na\tb\n", "separated by tabs; name it .tsv"),
    "open.csv": (f'{MANY}"a,b\n', "row 5: unexpected end of data"),
    "header.csv": ("who,text\n", r"\(column text\) is empty"),
    "empty.json": ("\n", "is empty"),
    "absent.csv": ("who,said\na,b\n", "has no column text among who, said"),
    "twice.csv": ("text,text\na,b\n", "it has several columns text; rename them"),
    "chat.json": (CHAT, "has no column text among from, said"),
    "row.jsonl": ('{"text": "a"}\n{"text": "b"}\n{"text"\n', "row 3: Expecting ':' delimiter"),
    "list.jsonl": ('{"text": ["a", "b"]}', "column text does not contain text, but .'a', 'b'"),
    "half.jsonl": ('{"text": "\\ud83d"}', r"can't encode character '\\ud83d'"),
    "not.parquet": ("text\nabc\n", " cannot be read: Parquet magic bytes not found"),
    "latin.csv": ("who,text\na,caf\udce9\n", " is not UTF-8 text at byte 14"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_table_that_cannot_be_read_is_named_with_its_row(workplace: Path, name: str) -> None:
    content, error = MISTAKES[name]
    Path(name).write_bytes(content.encode(errors="surrogateescape"))
    with pytest.raises(UserError, match=f"^{name}.*{error}"):
        read(name)


def test_column_of_numbers_is_not_text(workplace: Path) -> None:
    pq.write_table(pa.table({"text": [1, 2]}), "numbers.parquet")
    with pytest.raises(
        UserError, match=r"text does not contain text, but 1 in the row {'text': 1}$"
    ):
        read("numbers.parquet")


def test_messages_are_not_a_column(workplace: Path) -> None:
    """Their texts could be joined as the parts of a text are."""
    messages = [{"type": "message", "text": "a"}, {"type": "message", "text": "b"}]
    Path("chat.json").write_text(json.dumps({"messages": messages}))
    with pytest.raises(UserError, match=r"no column messages among type, text"):
        read("chat.json", "messages")


def test_tables_and_texts_are_joined(workplace: Path) -> None:
    for name, content in (("a.csv", "text\na\n"), ("b.txt", "b"), ("c.jsonl", '{"text": "c"}')):
        Path(name).write_text(content)
    loaded = load_text(DataConfig(source=["a.csv", "b.txt", "c.jsonl", "a.csv"]))
    assert loaded.tokenizer.decode(loaded.tokens.tolist()) == "a\nbc"
    assert loaded.corpus.source == "a.csv, b.txt, c.jsonl (column text)"
