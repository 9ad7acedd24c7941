"""study.py as a person uses it: every number of each verb against the same found another way, and
the mistakes one makes."""

import json
import re
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from torch import Tensor

import study
import train
from data.batches import open_batches
from lens import verify
from lens.capture import blocks_of, capture, head_replaced, without_mask
from lens.checks import check_model
from lens.compare import Name
from lens.composition import chance_level, composition
from lens.measure import ablate, logit_lens, mean_loss, measure_copying, repeated, score_heads
from lens.metrics import SCORES
from lens.subject import REPEATS, Subject
from lens.trace import trace_layer
from lens.variants import layer_comparisons, with_relu
from model.gpt import GPT
from run.checkpoint import open_run
from tests.conftest import DEBUG

L, H, D, PROMPT = 3, 2, 16, "The value of the object"
SMALL = [
    "--train.sample_tokens=0", "--train.tensorboard=false", "--train.device=cpu",
    "--train.precision=float32",
]  # fmt: skip
QUICK = {
    "compare": ["--sequences=2", "--steps=2"],
    "heads": ["--sequences=2"],
    "report": ["--sequences=2"],
}
Said = Callable[..., str]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`text`, whose best weights are of step 20 and whose last are of step 40, and `copying`."""
    folder = tmp_path_factory.mktemp("runs")
    copying = str(Path(DEBUG).parent / "induction.yaml")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        shape = [f"--model.n_layer={L}", "--model.block_size=33"]
        steps = ["--train.eval_every=20", "--train.max_steps=20"]
        assert train.main([DEBUG, "--run=text", *shape, *steps, *SMALL]) == 0
        shutil.copy("runs/text/best.safetensors", "best.safetensors")
        assert train.main(["--resume=text", "--train.max_steps=40", "--train.snapshots=20"]) == 0
        shutil.copy("best.safetensors", "runs/text/best.safetensors")
        flags = ["--model.n_embd=16", "--model.n_head=2", "--train.max_steps=3"]
        assert train.main([copying, "--run=copying", *flags, *SMALL]) == 0
    return folder / "runs"


@pytest.fixture
def run(runs: Path, workplace: Path) -> Path:
    """`text`, in a folder of its own."""
    return Path(shutil.copytree(runs / "text", workplace / "runs" / "text"))


@pytest.fixture
def said(run: Path, capsys: pytest.CaptureFixture[str]) -> Said:
    """Run a verb; what it printed."""

    def study_says(*argv: str) -> str:
        capsys.readouterr()
        assert study.main(list(argv)) == 0
        return capsys.readouterr().out

    return study_says


def open_model(
    run: Path, count: int = 2, checkpoint: str = "best", source: str | None = None
) -> tuple[GPT, list[str], Tensor, Tensor]:
    """Model, vocabulary, prompt, and so many full validation sequences, spread evenly."""
    saved = open_run(run, checkpoint)
    vocab = [saved.tokenizer.decode([i]) for i in range(saved.tokenizer.vocab_size)]
    T, data = saved.config.model.block_size, saved.config.data
    data = data if source is None else replace(data, source=source)
    batches = open_batches(data, T, saved.config.train.seed, saved.tokenizer)
    full = torch.cat([tokens for tokens in batches.validation(1) if tokens.size(1) == T + 1])
    places = np.linspace(0, len(full) - 1, count).round().astype(int)
    prompt_T = torch.tensor([vocab.index(char) for char in PROMPT])
    return saved.model(torch.device("cpu")), vocab, prompt_T, full[places]


def numbers(text: str) -> list[float]:
    """All of a line or a table, but those that are part of a name."""
    found = re.findall(r"(?<![\w.-])[-+]?\d[\d,]*(?:\.\d+)?(?:e[-+]\d+)?(?![\w.])", text)
    return [float(number.replace(",", "")) for number in found]


def table(output: str, heading: str) -> dict[str, list[float]]:
    """The rows of the table whose heading begins so: the name of each, and its numbers."""
    lines = iter(output.splitlines())
    rule = next(next(lines) for line in lines if line.startswith(heading))
    width, rows = rule.index("  "), {}
    for line in lines:
        if not line.strip() or line.startswith("("):
            break
        rows[line[:width].strip()] = numbers(line[width:])
    return rows


# --- trace ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("checkpoint", "layer", "head"), [("best", 2, 1), ("last", 1, 0)])
@torch.no_grad()
def test_trace(said: Said, run: Path, checkpoint: str, layer: int, head: int) -> None:
    flags = [f"--layer={layer}", f"--head={head}", f"--checkpoint={checkpoint}"]
    output = said("trace", f"--prompt={PROMPT}", *flags)
    model, _, prompt_T, _ = open_model(run, checkpoint=checkpoint)
    seen, T = capture(model, prompt_T[None]).layers[layer], len(prompt_T)
    steps = trace_layer(blocks_of(model)[layer].attn, seen.x_BTC, seen.output_BTC)
    rows = table(output, "step ")
    assert list(rows) == list(steps)
    for name, step in steps.items():
        shown = step.value if step.hidden is None else step.value[~step.hidden]
        statistics = [shown.min().item(), shown.mean().item(), shown.max().item()]
        assert rows[name][-3:] == pytest.approx(statistics, abs=6e-4), name
    hidden = H * T * (T - 1) // 2
    assert f"1.0000 to 1.0000  {hidden} of {H * T * T:,}" in " ".join(output.split("weights A")[1:])
    scores, weights = steps["scores"].value, seen.weights_BHTS
    at = 6  # of 23 positions
    output += said("trace", f"--prompt={PROMPT}", f"--at={at}", *flags)
    for first, title, matrix, is_masked in (
        (0, f"head {head}: scores before the mask", scores, False),
        (0, f"head {head}: after the mask", scores, True),
        (0, f"head {head}: weights after the softmax", weights, True),
        (at, f"head {head}: weights after the softmax", weights, True),
    ):
        place = output.rindex(title) if first else output.index(title)
        rows = table(output[place:], "query")
        letters = PROMPT.replace(" ", "␣")[first : first + 8]
        assert list(rows) == [f"{first + i} {c}" for i, c in enumerate(letters)]
        for q, row in enumerate(rows.values(), first):
            expected = matrix[0, head, q, first : q + 1 if is_masked else first + 8].tolist()
            assert row == pytest.approx(expected, abs=6e-4)
    assert f"(positions {at} to {at + 7} of {T}; --at shows others)" in output


def test_descriptions_without_a_run(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert study.main(["trace"]) == 0
    assert "there is no run yet" in capsys.readouterr().out
    assert study.main(["trace", "--random", "4,10,512", "--n_head", "16"]) == 0
    output = capsys.readouterr().out
    for words in (
        *("(4, 10, 512)", "(4, 16, 10, 10)", "(4, 16, 10, 32)", "(4, 1, 10, 10)"),
        *("(5, 3)", "(5, 3, 8)", "(5, 2, 3, 3)"),
        "1.000 0.000 0.000",  # C, masked: the first sees itself alone
    ):
        assert words in output
    error = re.search(r"against nn.MultiheadAttention: (\S+)", output)
    assert error and 0 < float(error[1]) < 1e-5


# --- verify --------------------------------------------------------------------------------------


def test_verify(said: Said, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = Subject.__init__

    def init(self: Subject, *args: Any) -> None:
        original(self, *args)
        object.__setattr__(self.header.machine, "precision", "bfloat16")

    monkeypatch.setattr(Subject, "__init__", init)
    output = said("verify", f"--prompt={PROMPT}")
    model, _, prompt_T, _ = open_model(run)
    expected = check_model(model, prompt_T, torch.bfloat16)
    lines = [re.split(r"\s{2,}", line) for line in output.splitlines()[2:-2]]
    for line, check in zip(lines, expected, strict=True):
        error = [f"{check.error:.1e}"] if check.error is not None else []
        tolerance = [f"{check.tolerance:.0e}"] if check.tolerance is not None else []
        assert line == [check.name, check.dtype, check.verdict, *error, *tolerance]
    assert "26 passed, 0 failed, 2 not comparable" in output


def test_verify_fails_with_exit_code_one(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(model: GPT, *args: Any) -> Any:
        blocks_of(model)[1].attn.attend.register_forward_hook(lambda module, args, z: z * 1.01)
        return check_model(model, *args)

    monkeypatch.setattr(verify, "check_model", broken)
    assert study.main(["verify", "--prompt", "The value"]) == 1
    captured = capsys.readouterr()
    assert "layer 1, head" in captured.err and "position" in captured.err
    assert re.search(r"float64 +failed .*layer 1, head \d", captured.out)


# --- compare -------------------------------------------------------------------------------------


def test_compare(said: Said, run: Path) -> None:
    flags = ["--layer=1", "--sequences=4", "--steps=12"]
    output = said("compare", f"--prompt={PROMPT}", *flags)
    model, _, prompt_T, sequences = open_model(run, 4)
    seen = capture(model, prompt_T[None]).layers[1]
    other = capture(model, sequences[-1:, : len(prompt_T) * 2 // 3]).layers[1].x_BTC
    expected: dict[str, float] = {}
    for compute in layer_comparisons(blocks_of(model)[1].attn, seen, other).values():
        comparison = compute()
        assert comparison.title[:90] in output
        expected |= comparison.numbers
    whole = mean_loss(model, sequences)
    expected["loss on 4 validation sequences, as trained"] = whole
    expected["loss on 4 validation sequences, with the mask"] = whole
    expected["with the ReLU"] = mean_loss(with_relu(model), sequences)
    with without_mask(model):
        expected["without it"] = mean_loss(model, sequences)
    found = {}
    for line in output.splitlines():
        if match := re.fullmatch(r"    (\S.*?) {2,}([-\d.,e]+)", line):
            found[match[1]] = float(match[2].replace(",", ""))
    for name, number in expected.items():
        rel = 0.05 if number < 1e-3 else 1e-4
        assert found.pop(name) == pytest.approx(number, rel=rel, abs=6e-5), name
    with_with, with_without, without_with, cheating = found.values()
    assert [name.split(": loss ") for name in found] == [
        ["trained with", "with the mask"], ["trained with", "without it"],
        ["trained without", "with the mask"], ["trained without", "without it"],
    ]  # fmt: skip
    assert cheating < with_with < without_with and cheating < with_without
    texts = re.findall(r"    trained (with|without), it generates: (.{60,})", output)
    assert [how for how, _ in texts] == ["with", "without"] and texts[0][1] != texts[1][1]


def test_compare_one_thing_only(said: Said, run: Path) -> None:
    """Each name in the help is one, and gives its part of all of it."""
    flags = ["--layer=1", "--sequences=2", "--steps=3"]
    whole = said("compare", *flags)
    names = get_args(Name)
    first, *titles = whole.split("\n\n")
    assert len(titles) == len(names) == 12
    for name, part in zip(names, titles, strict=True):
        assert said("compare", *flags, f"--only={name}").strip() == f"{first}\n\n{part}".strip()


def test_compare_draws_what_it_prints(said: Said, run: Path) -> None:
    printed = said("compare", "--only=unmasked", "--picture=compare.svg")
    picture = Path("compare.svg").read_text()
    numbers = re.findall(r"(\d\.\d+)$", printed, re.MULTILINE)
    assert len(numbers) == 2
    for number in numbers:
        assert f">{float(number):.3f}".rstrip("0") in picture
    assert ">without it<" in picture and ">the mask taken away after training<" in picture


# --- heads ---------------------------------------------------------------------------------------


def test_heads(said: Said, run: Path) -> None:
    for checkpoint in ("best", "last"):
        flags = ["--sequences=5", "--period=7", f"--checkpoint={checkpoint}"]
        found = json.loads(said("heads", "--json", *flags))["heads"]
        model, vocab, _, sequences = open_model(run, 5, checkpoint)
        scores = score_heads(model, sequences[:, :-1], repeated(len(vocab), 7, REPEATS))
        cuts = {f"ablation_{k}": v for k, v in ablate(model, sequences).changes.items()}
        places = [(entry.pop("layer"), entry.pop("head")) for entry in found]
        assert places == [(i, h) for i in range(L) for h in range(H)]
        for place, entry in zip(places, found, strict=True):
            expected = {key: float(value[place]) for key, value in (scores | cuts).items()}
            assert entry == pytest.approx(expected, abs=1e-6)

    output = said("heads", *flags)  # the same numbers, and more
    rows = table(output, "head ")
    uniform = [score.uniform(14 if score.repeats else 33) for score in SCORES]
    assert rows.pop("uniform") == pytest.approx(uniform, abs=6e-4)
    keys = [score.key for score in SCORES]
    keys += ["ablation_zero", "ablation_zero_error", "ablation_mean", "ablation_mean_error"]
    names = [f"L{i}H{h}" for i in range(L) for h in range(H)]
    for name, (row, numbers_of), entry in zip(names, rows.items(), found, strict=True):
        assert row == name + " sink" * (entry["first_token"] > 0.3)
        assert numbers_of == pytest.approx([entry[key] for key in keys], abs=6e-4)
    assert f"loss on 5 validation sequences is {mean_loss(model, sequences):.4f} nats" in output
    copying = table(output, "copying")
    assert list(copying) == ["period 4", "period 8", "period 16"]
    for name, row_numbers in copying.items():
        expect = measure_copying(model, int(name.split()[1]), REPEATS)
        ratio, best = expect.second / expect.first, float(expect.induction_LH.max())
        assert row_numbers == pytest.approx([expect.first, expect.second, ratio, best], abs=6e-4)
        layer, head = divmod(int(expect.induction_LH.argmax()), H)
        assert re.search(rf"{name} +no .* L{layer}H{head}\n", output)
    lens = table(output, "logit lens")
    assert list(lens) == ["embedding", *(f"after layer {i}" for i in range(L))]
    expected_lens = logit_lens(model, sequences)
    assert [loss for (loss,) in lens.values()] == pytest.approx(expected_lens, abs=6e-5)


def test_heads_on_a_prompt_and_on_another_text(said: Said, run: Path) -> None:
    Path("other.txt").write_text("The value of the object is the object of the value. " * 40)
    model, vocab, prompt_T, sequences = open_model(run, 3, source="other.txt")
    flags = [f"--prompt={PROMPT}", "--source=other.txt", "--json", "--sequences=3"]
    scores = score_heads(model, prompt_T[None], repeated(len(vocab), 16, REPEATS))
    cuts = {f"ablation_{k}": v for k, v in ablate(model, sequences).changes.items()}
    for entry in json.loads(said("heads", *flags))["heads"]:
        place = entry.pop("layer"), entry.pop("head")
        expected = {key: float(value[place]) for key, value in (scores | cuts).items()}
        assert entry == pytest.approx(expected, abs=1e-6)


def test_heads_without_some(said: Said, run: Path) -> None:
    model, vocab, _, sequences = open_model(run, 3)
    flags = ["--without=L0H1,l1h0", "--sequences=3", "--period=7"]
    found = json.loads(said("heads", "--json", *flags))["heads"]
    with head_replaced(model, 0, 1, 0.0), head_replaced(model, 1, 0, 0.0):
        scores = score_heads(model, sequences[:, :-1], repeated(len(vocab), 7, REPEATS))
        copying = measure_copying(model, 7, REPEATS)
    for entry in found:
        place = entry["layer"], entry["head"]
        for key, value in scores.items():
            assert entry[key] == pytest.approx(float(value[place]), abs=1e-6), key
    assert scores["induction"][2, 0] == pytest.approx(float(copying.induction_LH[2, 0]))
    output = said("heads", *flags)
    assert output.startswith("measured without L0H1,l1h0\n")
    rows = table(output, "composition")
    for pair in composition(model):
        (i, a), (j, b) = pair.earlier, pair.later
        name = f"L{i}H{a} -> L{j}H{b}"
        if name in rows:
            assert rows.pop(name) == pytest.approx(list(pair.scores.values()), abs=6e-4)
    assert rows == {"chance": [pytest.approx(chance_level(32, D), abs=6e-4)] * 3}


def test_heads_drawn(said: Said, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib", reason="needs pip install matplotlib")
    flags = ["heads", "--sequences=2", "--picture=heads.svg"]
    assert "picture: heads.svg" in said(*flags)
    picture = Path("heads.svg").read_text()
    for words in [f"L{i}H{h}" for i in range(L) for h in range(H)]:
        assert picture.count(f">{words}<") == len(SCORES)
    assert all(f">{score.name}<" in picture for score in SCORES)
    assert study.main(flags) == 2, "it exists"
    Path("heads.svg").unlink()
    said(*flags)
    assert Path("heads.svg").read_text() == picture
    Path("heads.svg").unlink()
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert study.main(flags) == 2


def test_a_sink_is_called_one(said: Said) -> None:
    """Over three tokens even uniform attention is above 0.3."""
    rows = table(said("heads", "--prompt=The", "--sequences=2"), "head ")
    del rows["uniform"]
    assert [name.endswith(" sink") for name in rows] == [row[4] > 0.3 for row in rows.values()]
    assert any(0.3 < row[4] < 0.6 for row in rows.values())


def test_a_run_on_repeated_strings(
    runs: Path, workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = str(runs / "copying")
    for verb in (["trace"], ["verify"], ["compare", "--steps=2", "--sequences=3"]):
        assert study.main([verb[0], run, *verb[1:]]) == 0
    capsys.readouterr()
    assert study.main(["heads", run, "--sequences=3"]) == 0
    output = capsys.readouterr().out
    trained = dict(re.findall(r"period (\d+) +(yes|no)", output))
    assert trained == {"4": "no", "8": "yes", "20": "yes", "32": "yes", "40": "no", "48": "no"}
    assert "random strings of 20 different tokens" in output
    assert study.main(["report", run, "--sequences=3", "--out=page.html"]) == 0
    data = data_of(Path("page.html"))
    strings = repeated(len(data["vocab"]), 20, 1)[0]
    assert data["prompt"] == strings.tolist() and data["copies"]
    assert data["snapshots"][-1]["copying"]["period"] == 20


# --- report --------------------------------------------------------------------------------------


def data_of(page: Path) -> dict[str, Any]:
    html = page.read_text(encoding="utf-8")
    (data,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', html, re.S)
    found: dict[str, Any] = json.loads(data)
    return found


# --- texts, names and mistakes -------------------------------------------------------------------


def test_a_text_of_many_characters_and_a_name_with_escape_codes(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """More characters than a byte holds, a few validation sequences, and a prompt in which every
    key is the same."""
    text = "".join(chr(0x4E00 + i * i % 1000) for i in range(2000))
    Path("text.txt").write_text(text, encoding="utf-8")
    flags = ["--data.source=text.txt", "--train.max_steps=2", "--train.eval_every=2", *SMALL]
    assert train.main([DEBUG, "--run=chinese", *flags]) == 0
    evil = Path("runs/chinese").rename("runs/\x1b[31m\x07red")
    for verb in study.VERBS:
        capsys.readouterr()
        assert study.main([verb, str(evil), *QUICK.get(verb, []), "--prompt", text[:12]]) == 0
        out, error = capsys.readouterr()
        assert not set("\x1b\x07") & {*out, *error} and "\\x1b[31m\\x07red" in error
        assert verb != "trace" or text[0] in out
    data = data_of(evil / "report.html")
    assert "".join(data["vocab"][token] for token in data["prompt"]) == text[:12]
    assert study.main(["verify", f"--prompt={text[5] * 4}"]) == 0
    Path("text.txt").unlink()
    assert study.main(["trace"]) == 2
    assert "no text at text.txt: --source takes a file" in capsys.readouterr().err


MISTAKES = [
    (["--prompt=x"], "name a verb first"),
    (["heads", "--sequence=3"], "unknown flag --sequence; did you mean --sequences?"),
    (["heads", "--sequences=1"], "sequences must be in [2, inf)"),
    (["heads", "--without=L9H0"], "name heads as L0H1,L1H0; they are L0H0 to L2H1"),
    (["heads", "--picture=heads.txt"], "--picture 'heads.txt' should name a file that ends in"),
    (["heads", "--picture=nowhere/heads.svg"], "in an existing folder"),
    (["heads", "--without=first"], "--without 'first': name heads"),
    (["heads", "--period=1"], "period must be in [2, inf)"),
    (["heads", "--period=17"], "--period 17 must be from 2 to 16"),
    (["trace", f"--layer={L}"], f"--layer {L}: the layers are 0 to {L - 1}"),
    (["trace", "--layer=-1"], "layer must be in [0, inf)"),
    (["trace", f"--head={H}"], f"--head {H}: the heads are 0 to {H - 1}"),
    (["trace", "--head=-1"], "head must be in [0, inf)"),
    (["trace", "--prompt="], "two tokens or more"),
    (["trace", "--prompt=\u4e00\u4e8c"], "the model has never seen '\u4e00' '\u4e8c'"),
    (["trace", "--random=4,10"], "--random 4,10 must be B,T,C"),
    (["trace", "--random=400,1000,512"], "not too large"),
    (["trace", "text", "--random=4,10,512"], "--random shows descriptions without a run"),
    (["trace", "--random=4,10,510"], "C = 510 must be divisible by --n_head 8"),
    (["heads", "--source=absent.txt"], "absent.txt"),
    (["trace", "--n_head=0"], "n_head must be in [1, inf)"),
    (["heads", "--source="], "source"),
    (["compare", "--steps=-1"], "steps must be in [0, inf)"),
    (["compare", f"--layer={L}"], f"--layer {L}: the layers are 0 to {L - 1}"),
    (["report", "--out=nowhere/page.html"], "should name a file in an existing folder"),
    (["report", "--out=runs"], "should name a file in an existing folder"),
]


def test_mistakes_are_one_line(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for argv, message in MISTAKES:
        assert study.main(argv) == 2, argv
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
