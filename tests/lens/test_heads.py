"""The command heads: a line for each head, of one run or two."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic_core import to_json

import study
from benchmarks.heads import count_jobs
from lens.answers import Matters
from lens.heads import table_of_differences
from lens.jobs import Job, table_of_jobs
from lens.measure import ablate
from lens.subject import MeasureOptions, Subject
from lens.targets import Reads
from tests.conftest import make_run

TEXT = "the value of the object is returned by the function\nand every word is a name\n" * 60


def tables(*words: str) -> list[list[Any]]:
    assert study.main(["heads", *words, "--sequences=13", "--json=out.json"]) == 0
    found: list[list[Any]] = json.loads(Path("out.json").read_text())["tables"]
    return found


def test_heads_prints_each_head_of_one_run_or_two(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The weights of these runs are random, so that every head changes the loss."""
    Path("text.txt").write_text(TEXT, newline="\n")
    make_run(Path("runs/a"))
    make_run(Path("runs/b"), n_layer=2)
    a, b, differ = tables("a", "b", "--source=text.txt")
    assert [len(jobs) for jobs in (a, b)] == [6, 4]
    assert differ[0] == ["job", "a", "b"]
    (alone,) = tables("b", "--source=text.txt")
    assert alone == b
    subject = Subject("b", MeasureOptions(source="text.txt"))
    changes = ablate(subject.model, subject.sequences(13))
    found = {job["head"]: job["loss if ablated"] for job in alone}
    expected = torch.stack((changes["mean"], changes["mean_error"]), -1).flatten(0, 1)
    assert torch.allclose(torch.tensor([*found.values()]), expected, atol=1e-6)
    assert tables("b", "--source=text.txt", "--without=L0H0")[0] != b
    capsys.readouterr()
    assert study.main(["heads", "a", "b", "a"]) == 2
    assert "name one or two" in capsys.readouterr().err


LINE = Reads("the last ↵, up to 64 back", "↵", 0.29, 0.02, False)
NEAR = Reads("the last 4 tokens", "the last tokens", 0.5, 0.06, True)
BRACKET = Reads("the last [", "[", 0.6, 0.1, False)
ENDS = Matters(["↵", "]"], True, (0.712, 0.1), 0.01, torch.zeros(1, 1), BRACKET)
JOBS = [
    Job("L0H0", [NEAR, LINE], [ENDS], (0.0131, 0.003), True),
    Job("L0H1", [], [], (0.0001, 0.003), False),
    Job("L1H0", [NEAR], [], (0.41, 0.02), True),
]


def test_a_job_is_a_line_and_a_sentence() -> None:
    assert [[str(cell) for cell in row] for row in table_of_jobs(JOBS).rows[1:]] == [
        ["L0H0", "the last 4 tokens (0.50)", "↵ ] (+0.71 ± 0.10; +0.01)", "(0.0131, 0.003)"],
        ["", "at ↵: the last [ (0.60)", "", "None"],
        ["", "the last ↵, up to 64 back (0.29)", "", "None"],
        ["L0H1", "nothing found", "nothing found", "(0.0001, 0.003)"],
        ["L1H0", "the last 4 tokens (0.50)", "everywhere", "(0.41, 0.02)"],
    ]
    assert to_json(table_of_jobs(JOBS).full[:1]) == to_json(
        [
            {
                "head": "L0H0",
                "attends to": [NEAR._asdict(), LINE._asdict()],
                "matters for": [
                    {
                        "answers": ["↵", "]"],
                        "loss change": [0.712, 0.1],
                        "elsewhere": 0.01,
                        "there": BRACKET._asdict(),
                    }
                ],
                "loss if ablated": [0.0131, 0.003],
            }
        ]
    )
    kind = Matters(["digits"], False, (0.5, 0.1), 0.01, torch.zeros(1, 1))
    assert Job("L0H0", [], [kind, ENDS], (0.1, 0.01), True).tokens == ["↵", "]"]
    assert JOBS[0].line() == "↵ ] ← the last ["
    assert JOBS[0]._replace(reads=[NEAR, LINE._replace(weight=0.7)]).line().endswith("64 back")
    assert [job.line() for job in JOBS[1:]] == ["nothing found", "everywhere"]
    sentence = JOBS[0].sentence()
    assert "0.29 of its weight to the last ↵, up to 64 back, where position alone would" in sentence
    assert "+0.71 ± 0.10 nats where the answer is ↵ ], and +0.01 elsewhere (at ↵, it" in sentence


def test_two_runs_and_several_seeds_are_compared_by_job() -> None:
    rows = table_of_differences({"a": JOBS, "b": JOBS[1:]}).rows
    assert rows == [
        ["job", "a", "b"],
        ["attends to [", "L0H0", "none"],
        ["attends to ↵", "L0H0", "none"],
        ["matters for ]", "L0H0", "none"],
        ["matters for ↵", "L0H0", "none"],
        ["attends to the last tokens", "L0H0 L1H0", "L1H0"],
    ]
    many = table_of_differences({"b": JOBS[1:], "a": 4 * JOBS}).rows
    assert many[1] == ["attends to [", "none", "L0H0 L0H0 L0H0 L0H0"]
    assert many[-1] == ["attends to the last tokens", "L1H0", "8 heads"]
    heads = [["L2H0", "L3H1"], ["L1H1"], ["L2H1"]]
    runs: list[dict[str, Any]] = [
        {"seconds": 1.0, "matters for ↵": {"heads": names, "step": 64 * (i + 1)}}
        for i, names in enumerate(heads)
    ]
    runs[0]["attends to ↵"] = runs[2]["attends to ↵"] = {"heads": ["L2H0"], "step": 128}
    runs[1]["attends to ["] = {"heads": ["L0H0"], "step": 600}
    keys = ("job", "seeds", "layers", "heads", "from_step")
    assert [[row[key] for key in keys] for row in count_jobs("x", runs)] == [
        ["matters for ↵", "3 of 3", "L1: 1, L2: 2, L3: 1", [2.0, 1.0, 1.0], [64.0, 128.0, 192.0]],
        ["attends to ↵", "2 of 3", "L2: 2", [1.0, 1.0], [128.0, 128.0]],
    ]
