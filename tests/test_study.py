"""study.py as a person uses it: each verb on real runs, and the mistakes one makes."""

import json
import re
import shutil
from pathlib import Path

import pytest
import torch

import study
import train
from lens import heads
from lens.capture import blocks_of
from run.folder import open_run
from run.snapshots import find_snapshots
from tests.conftest import DEBUG

QUICK = ["--windows", "4"]


@pytest.fixture
def here(workplace: Path, debug_run: Path) -> Path:
    """A folder with the debug run in it."""
    shutil.copytree(debug_run, workplace / "runs" / "debug")
    return workplace


@pytest.fixture(scope="module")
def copying_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on repeated strings, a few steps long."""
    folder = tmp_path_factory.mktemp("copying")
    config = Path(DEBUG).parent / "induction.yaml"
    small = ["--model.n_embd=16", "--model.n_head=2", "--train.max_steps=6", "--train.eval_every=3"]
    small += ["--train.sample_tokens=0", "--train.tensorboard=false", "--train.device=cpu"]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert train.main([str(config), "--run=copying", *small]) == 0
    return folder / "runs" / "copying"


@pytest.mark.parametrize(
    ("verb", "says"),
    [
        (["trace", "--layer=1", "--head=1"], ["weights A", "1.0000 to 1.0000", "·"]),
        (["verify"], ["0 failed", "not comparable: rotary, QK-norm"]),
        (
            ["compare", "--steps=20", *QUICK],
            ["D's question", "bfloat16: score gap", "from the start"],
        ),
        (["heads", *QUICK], ["uniform", "L1H1", "logit lens", "after layer 1", "copying"]),
        (["report", *QUICK], ["report.html", "open it in a browser"]),
    ],
    ids=lambda value: value[0],
)
def test_every_verb_on_a_run(
    here: Path, capsys: pytest.CaptureFixture[str], verb: list[str], says: list[str]
) -> None:
    assert study.main([*verb, "--prompt", "The value of the object"]) == 0
    output = capsys.readouterr().out
    for words in says:
        assert words in output


@pytest.mark.parametrize("verb", ["trace", "verify", "heads", "report"])
def test_every_verb_on_repeated_strings(
    copying_run: Path, capsys: pytest.CaptureFixture[str], verb: str, workplace: Path
) -> None:
    flags = QUICK if verb in ("heads", "report") else []
    assert study.main([verb, str(copying_run), *flags]) == 0
    output = capsys.readouterr().out
    if verb == "heads":
        trained = dict(re.findall(r"period (\d+) +(yes|no)", output))
        assert trained == {"4": "no", "8": "yes", "20": "yes", "32": "yes", "40": "no", "48": "no"}


def test_a_text_of_thousands_of_characters(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "".join(chr(0x4E00 + i * i % 3000) for i in range(6000))
    Path("text.txt").write_text(text, encoding="utf-8")
    flags = ["--data.source=text.txt", "--train.max_steps=2", "--train.eval_every=2"]
    assert train.main([DEBUG, "--run=chinese", *flags]) == 0
    capsys.readouterr()
    for verb in (["trace"], ["verify"], ["heads", *QUICK], ["report", *QUICK]):
        assert study.main([*verb, "--prompt", text[:12]]) == 0
    output = capsys.readouterr().out
    assert text[0] in output
    assert text[5] in json.loads(data_of(Path("runs/chinese/report.html")))["tokens"]


def data_of(page: Path) -> str:
    html = page.read_text(encoding="utf-8")
    (data,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', html, re.S)
    return str(data)


def test_json_is_a_list_of_heads(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert study.main(["heads", "--json", "--windows=4", "--period=8"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(entry["layer"], entry["head"]) for entry in found] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    saved = open_run(here / "runs" / "debug")
    model = saved.model(torch.device("cpu"))
    repeats = heads.repeated(saved.tokenizer.vocab_size, 8, study.REPEATS)
    scores = heads.score_heads(model, repeats, repeats)
    for entry in found:
        expected = scores["induction"][entry["layer"], entry["head"]]
        assert entry["induction"] == pytest.approx(float(expected))
        assert {"previous_token", "entropy", "ablation_zero", "ablation_mean_error"} < entry.keys()


def test_the_report_has_the_run_in_it(here: Path) -> None:
    evil = "</script><img src=x onerror=alert(1)>"
    known = open_run(here / "runs" / "debug").tokenizer
    assert study.main(["report", "--prompt", evil, "--out", "page.html", *QUICK]) == 0
    html = Path("page.html").read_text(encoding="utf-8")
    assert "<img" not in html
    data = json.loads(data_of(Path("page.html")))
    assert "".join(data["tokens"]) == evil[:32]
    assert data["vocab"] == [known.decode([i]) for i in range(known.vocab_size)]
    steps = [snapshot["step"] for snapshot in data["snapshots"]]
    assert steps == sorted({*find_snapshots(here / "runs" / "debug"), 60}) and len(steps) >= 10
    assert {proof["verdict"] for proof in data["proofs"]} >= {"passed"}
    assert data["curve"]["step"] == [30, 60]
    assert study.main(["report", "--out", "page.html", *QUICK]) == 0  # a report may be replaced


def test_a_file_that_is_no_report_is_never_overwritten(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("mine.txt").write_text("<!doctype html> mine, about glassgpt")
    assert study.main(["report", "--out", "mine.txt", *QUICK]) == 2
    assert "mine.txt exists and is not a report" in capsys.readouterr().err
    assert Path("mine.txt").read_text().endswith("mine, about glassgpt")


def test_descriptions_without_a_run(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert study.main(["trace"]) == 0
    assert "there is no run yet" in capsys.readouterr().out
    assert study.main(["trace", "--random", "4,10,512", "--n_head", "8"]) == 0
    output = capsys.readouterr().out
    for words in ("(4, 10, 512)", "(4, 8, 10, 10)", "(4, 8, 10, 64)", "(5, 3)", "(5, 2, 3, 3)"):
        assert words in output
    assert "1.000 0.000 0.000" in output  # C, masked: the first sees itself alone


MISTAKES = [
    ([], "name a verb first"),
    (["--prompt=x"], "name a verb first"),
    (["head"], "there is no verb head; did you mean heads?"),
    (["heads", "nowhere"], "there is no run nowhere"),
    (["heads", "debug", "other"], "one word without a flag at most"),
    (["heads", "--window=3"], "unknown flag --window; did you mean --windows?"),
    (["heads", "--windows=1"], "--windows must be a number of at least 2"),
    (["heads", "--period=17"], "--period 17 must be from 2 to 16"),
    (["heads", "--json=maybe"], "--json must be true or false"),
    (["trace", "--layer=2"], "--layer 2: the layers are 0 to 1"),
    (["trace", "--head=5"], "--head 5: the heads are 0 to 1"),
    (["trace", "--prompt="], "--prompt is empty"),
    (["trace", "--prompt=x"], "two tokens or more"),
    (["trace", "--prompt=\u4e00\u4e8c"], "the model has never seen '\u4e00' '\u4e8c'"),
    (["trace", "--random=4,10"], "--random 4,10 must be B,T,C"),
    (["trace", "debug", "--random=4,10,512"], "--random shows descriptions without a run"),
    (["trace", "--random=4,10,510"], "C = 510 must be divisible by --n_head 8"),
    (["heads", "--source=absent.txt"], "absent.txt"),
    (["compare", "--layer=9"], "--layer 9: the layers are 0 to 1"),
    (["compare", "--steps=-1"], "--steps must be a number of at least 0"),
]


@pytest.mark.parametrize(("argv", "message"), MISTAKES, ids=lambda value: str(value)[:40])
def test_mistakes_are_one_line(
    here: Path, capsys: pytest.CaptureFixture[str], argv: list[str], message: str
) -> None:
    assert study.main(argv) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("error: ") and message in error


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert study.main(["--help"]) == 0
    overview = capsys.readouterr().out
    for verb in study.VERBS:
        assert f"study.py {verb}" in overview
        with pytest.raises(SystemExit):
            study.main([verb, "--help"])
        printed = " ".join(capsys.readouterr().out.split())
        assert "The text to look at; without it" in printed


def test_verify_fails_with_exit_code_one(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    original = study.Subject.__init__

    def broken(self: study.Subject, *args: object) -> None:
        original(self, *args)  # type: ignore[arg-type]
        attend = blocks_of(self.model)[1].attn.attend
        attend.register_forward_hook(lambda module, args, z: z * 1.01)

    monkeypatch.setattr(study.Subject, "__init__", broken)
    assert study.main(["verify", "--prompt", "The value"]) == 1
    captured = capsys.readouterr()
    assert "layer 1, head" in captured.err and "position" in captured.err
    assert "failed" in captured.out


def test_a_short_text_and_a_constant_prompt(workplace: Path) -> None:
    """A validation split of a few windows, and a prompt in which every key is the same."""
    Path("short.txt").write_text("a short text to train on\n" * 60)
    flags = ["--data.source=short.txt", "--train.max_steps=3", "--train.eval_every=3"]
    assert train.main([DEBUG, "--run=short", *flags]) == 0
    for verb in (["compare", "--steps=3"], ["verify", "--prompt=aaaa"], ["verify", "--prompt=aa"]):
        assert study.main([*verb, "--checkpoint=last"]) == 0


def test_heads_reads_the_prompt(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def scores(*flags: str) -> list[dict[str, float]]:
        assert study.main(["heads", "--json", *QUICK, *flags]) == 0
        found: list[dict[str, float]] = json.loads(capsys.readouterr().out)
        return found

    validation, prompt = scores(), scores("--prompt=aaaaaaaa")
    assert validation[0]["previous_token"] != prompt[0]["previous_token"]
    assert validation[0]["ablation_zero"] == prompt[0]["ablation_zero"]
    Path("other.txt").write_text("The value of the object is the object of the value. " * 40)
    other = scores("--source=other.txt")
    assert other[0]["ablation_zero"] != validation[0]["ablation_zero"]


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_proofs_are_in_the_type_of_the_run(
    workplace: Path, capsys: pytest.CaptureFixture[str], precision: str
) -> None:
    flags = ["--train.max_steps=2", "--train.eval_every=2", f"--train.precision={precision}"]
    assert train.main([DEBUG, "--run=typed", *flags]) == 0
    capsys.readouterr()
    assert study.main(["verify", "--prompt=The value"]) == 0
    types = re.findall(r"(float64|float32|bfloat16) +passed", capsys.readouterr().out)
    assert set(types) == {"float64", precision}


@pytest.mark.parametrize("out", ["nowhere/page.html", "runs", ""])
def test_where_a_report_can_go_is_known_before_it_is_made(
    here: Path, capsys: pytest.CaptureFixture[str], out: str
) -> None:
    assert study.main(["report", f"--out={out}", "--prompt=The value", *QUICK]) == 2
    assert "should name a file in a folder" in capsys.readouterr().err
