"""The numbers that study.py prints equal those of independent computations."""

import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import study
import train
from lens.capture import blocks_of, capture, head_replaced, without_mask
from lens.compare import COMPARISONS, Case
from lens.composition import composition
from lens.formula import layer_steps
from lens.measure import ablate, logit_lens, mean_loss, measure_copying, repeated, score_heads
from lens.metrics import SCORES
from lens.subject import REPEATS, Subject, SubjectOptions
from lens.verify import check_model
from model.attention import Attend
from model.gpt import GPT
from run.checkpoint import SavedRun, open_run
from tests.conftest import ROOT, make_run
from training.size import flops_per_token

L, H, D, T, PROMPT = 3, 2, 16, 33, "the value of the object"
TEXT = "the value of the object is returned by the function\nand every word is a name\n" * 60
RunStudy = Callable[..., str]


@pytest.fixture
def run(workplace: Path) -> Path:
    """Return a run whose best and last weights differ, in a folder with two texts."""
    Path("text.txt").write_text(TEXT, newline="\n")
    Path("other.txt").write_text(TEXT[::-1], newline="\n")
    return make_run(workplace / "runs" / "text", n_layer=L, n_embd=H * D, block_size=T)


@pytest.fixture
def run_study(run: Path, capsys: pytest.CaptureFixture[str]) -> RunStudy:
    """Return a function that runs a command and returns its output."""

    def run_command(command: str, *flags: str) -> str:
        capsys.readouterr()
        assert study.main([command, "--source=text.txt", *flags]) == 0
        return capsys.readouterr().out

    return run_command


def open_model(
    run: Path, count: int = 2, checkpoint: str = "best", text: str = TEXT
) -> tuple[GPT, Tensor, Tensor]:
    """Return the model, the prompt, and `count` evenly spaced full validation sequences."""
    saved = open_run(run, checkpoint)
    tokens, prompt_T = (torch.tensor(saved.tokenizer.encode(x).tolist()) for x in (text, PROMPT))
    full = tokens[int(round(len(tokens) * 0.9, 3)) :].unfold(0, T + 1, T)
    places = np.linspace(0, len(full) - 1, count).round().astype(int)
    return saved.model(), prompt_T, full[places]


def numbers(text: str) -> list[float]:
    """Return all numbers in a line, except those that are part of a name."""
    found = re.findall(r"(?<![\w.-])[-+]?\d[\d,]*(?:\.\d+)?(?:e[-+]\d+)?(?![\w.])", text)
    return [float(number.replace(",", "")) for number in found]


def table(output: str, heading: str) -> dict[str, list[float]]:
    """Return the table whose heading begins with `heading`: the numbers of each row by its name."""
    lines = iter(output.splitlines())
    rule = next(next(lines) for line in lines if line.startswith(heading))
    width, rows = rule.index("  "), {}
    for line in lines:
        if not line.strip() or line.startswith("("):
            break
        rows[line[:width].strip()] = numbers(line[width:])
    return rows


@torch.no_grad()
def test_trace_prints_the_values_of_the_model(run_study: RunStudy, run: Path) -> None:
    output = run_study("trace", f"--prompt={PROMPT}", "--layer=2", "--head=1", "--checkpoint=last")
    model, prompt_T, _ = open_model(run, checkpoint="last")
    layer = capture(model, prompt_T[None]).layers[2]
    steps, rows = layer_steps(layer.attn, layer.x_BTC), table(output, "step ")
    assert list(rows) == list(steps)
    for name, step in steps.items():
        shown = step.value if step.hidden is None else step.value[~step.hidden]
        statistics = [float(of()) for of in (shown.min, shown.mean, shown.max)]
        assert rows[name][-3:] == pytest.approx(statistics, abs=6e-4), name
    assert "1.0000 to 1.0000 506 of 1,058" in " ".join(output.split())
    for title, matrix, counts in (
        ("scores before the mask", steps["scores"].value, [8] * 8),
        ("weights after the softmax", layer.weights_BHTS, range(1, 9)),
    ):
        rows = table(output[output.index(f"head 1: {title}") :], "query")
        assert list(rows) == [f"{i} {c}" for i, c in enumerate("the␣valu")]
        for row, numbers, count in zip(rows.values(), matrix[0, 1], counts, strict=False):
            assert row == pytest.approx(numbers[:count].tolist(), abs=6e-4)


def test_random_trace_matches_pytorch(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert study.main(["trace", "--random", "4,10,512", "--n_head", "16"]) == 0
    output = capsys.readouterr().out
    shapes = "(4, 10, 512)", "(4, 16, 10, 10)", "(4, 16, 10, 32)", "(5, 3, 8)", "(5, 2, 3, 3)"
    assert all(shape in output for shape in shapes)
    difference = re.search(r"against torch.nn.MultiheadAttention: (\S+)", output)
    assert difference and 0 < float(difference[1]) < 1e-5
    assert "-10000 where key > query" in output and "-inf" not in output


def test_verify_prints_every_check(run_study: RunStudy, run: Path) -> None:
    output = run_study("verify", f"--prompt={PROMPT}")
    model, prompt_T, _ = open_model(run)
    lines = [re.split(r"\s{2,}", line) for line in output.splitlines()[2:]]
    for line, check in zip(lines, check_model(model, prompt_T, torch.float32), strict=True):
        found = [f"{number:.1e}" for number in (check.error, check.tolerance) if number is not None]
        where = [check.where] if check.where else []
        assert line == [check.name, check.dtype, check.verdict, *found, *where]


def test_compare_prints_every_comparison(run_study: RunStudy, run: Path) -> None:
    flags = ["--layer=1", "--sequences=4", "--steps=40", f"--prompt={PROMPT}"]
    parts = run_study("compare", *flags).strip().split("\n\n")
    model, prompt_T, sequences = open_model(run, 4)
    layer = capture(model, prompt_T[None]).layers[1]
    other_BSC = capture(model, sequences[-1:, : len(prompt_T) * 2 // 3]).layers[1].x_BTC
    subject: Any = SimpleNamespace(model=model)
    case = Case(subject, sequences, 40, layer, other_BSC)
    for (name, comparison), part in zip(COMPARISONS.items(), parts, strict=True):
        assert part.startswith(f"{name}: ")
        expected: Any = {} if name == "never_masked" else comparison(case)
        for line, number in zip(part.splitlines()[1:], expected.values(), strict=False):
            rel = 0.05 if number < 1e-3 else 1e-4
            assert numbers(line)[-1] == pytest.approx(number, rel=rel, abs=6e-5), line
    with without_mask(model):
        assert numbers(parts[-2])[-1] == pytest.approx(mean_loss(model, sequences), abs=6e-5)
    losses = [numbers(line)[-1] for line in parts[-1].splitlines() if ": loss with" in line]
    with_with, with_without, without_with, cheating = losses
    assert cheating < with_with < without_with and cheating < with_without
    texts = re.findall(r"trained with(?:out)?, it generates: +(\S{60})", parts[-1])
    assert len(texts) == 2 and texts[0] != texts[1]
    assert run_study("compare", *flags, "--only=scale").strip() == parts[4]


def test_heads_prints_every_measurement(run_study: RunStudy, run: Path) -> None:
    """Use another text, two ablated heads, and a short prompt on which some heads are sinks."""
    model, prompt_T, sequences = open_model(run, 5, "last", TEXT[::-1])
    flags = ["--source=other.txt", "--prompt=the va", "--sequences=5", "--period=7"]
    output = run_study("heads", *flags, "--checkpoint=last", "--without=L0H1,l1h0")
    with head_replaced(model, 0, 1, 0.0), head_replaced(model, 1, 0, 0.0):
        scores = score_heads(model, prompt_T[None, :6], False)
        scores |= score_heads(model, repeated(28, 7, REPEATS), True)
        changes, lens = ablate(model, sequences), logit_lens(model, sequences)
        copying = [measure_copying(model, period, REPEATS) for period in (4, 8, 16)]
    rows, columns = table(output, "head "), [*scores.values(), *changes.values()]
    uniform = [score.uniform(14 if score.repeats else 6) for score in SCORES]
    assert rows.pop("uniform") == pytest.approx(uniform, abs=6e-4)
    sinks = scores["first_token"].flatten() > 0.3
    assert sinks.any() and not sinks.all()
    for i, (name, row) in enumerate(rows.items()):
        assert name == f"L{i // H}H{i % H}" + " sink" * bool(sinks[i])
        assert row == pytest.approx([float(column.flatten()[i]) for column in columns], abs=6e-4)
    assert f"loss {lens[-1]:.4f} nats/token on 5 validation sequences" in output
    rows = table(output, "copying")
    for (name, row), (first, second, induction_LH) in zip(rows.items(), copying, strict=True):
        best, (layer, head) = induction_LH.max().item(), divmod(int(induction_LH.argmax()), H)
        assert row == pytest.approx([first, second, second / first, best], abs=6e-4)
        assert re.search(rf"{name} +no .* L{layer}H{head}\n", output)
    pairs = {f"L{i}H{a} -> L{j}H{b}": [*s.values()] for (i, a), (j, b), s in composition(model)}
    pairs["random"] = [(H * D) ** -0.5] * 3
    rows = table(output, "composition")
    assert rows == {name: pytest.approx(pair, abs=6e-4) for name, pair in pairs.items()}
    shown = [loss for (loss,) in table(output, "logit lens").values()]
    assert shown == pytest.approx(lens, abs=6e-5)


def test_run_on_repeats_can_be_studied(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--model.n_embd=16", "--model.n_head=2", "--train.max_steps=3"]
    flags += ["--train.sample_tokens=0", "--train.precision=float32", "--run=copying"]
    assert train.main([str(ROOT / "configs/induction.yaml"), *flags]) == 0
    for command in ("trace", "verify", "compare --only=never_masked --steps=2"):
        assert study.main(command.split()) == 0
    capsys.readouterr()
    assert study.main(["heads", "--sequences=3"]) == 0
    output = capsys.readouterr().out
    trained = dict(re.findall(r"period (\d+) +(yes|no)", output))
    assert trained == {"4": "no", "8": "yes", "20": "yes", "32": "yes", "40": "no", "48": "no"}
    assert "random strings of 20 distinct tokens" in output
    strings = Subject("copying", SubjectOptions()).prompt_T
    assert torch.equal(strings, repeated(64, 20, 1)[0])


def test_large_model_is_measured_on_fewer_sequences(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    subject = Subject("text", SubjectOptions(source="text.txt"))
    passes = 2 * L * H * T * flops_per_token(subject.model) / 3  # forward only
    for enough, count in ((0.0, 2), (5.5, 5)):
        monkeypatch.setattr("lens.subject.ENOUGH", enough * passes)
        assert len(subject.sequences(None)) == count


def test_copying_periods_are_at_least_two_tokens(run: Path) -> None:
    make_run(run, block_size=8)
    assert Subject("text", SubjectOptions()).periods() == [2, 4]


# --- edited models -------------------------------------------------------------------------------

COMMANDS = ("trace", "verify", "heads --sequences=2", "compare --sequences=2 --steps=1")


def exit_codes(capsys: pytest.CaptureFixture[str]) -> list[int]:
    """Return the exit code of each command; assert that a code of 2 comes with one error line."""
    found = []
    for command in COMMANDS:
        flags = [f"--prompt={PROMPT}", "--source=text.txt"]
        found.append(study.main([*command.split(), *flags]))
        assert capsys.readouterr().err.count("error:") == (found[-1] == 2)
    return found


def test_edited_model_is_studied_or_rejected(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run(run, n_layer=2, n_embd=H * D, block_size=12)
    for kind, name, *expected in (
        (GPT, "unembed", 0, 0, 0, 0),
        (GPT, "forward", 0, 1, 2, 0),
        (Attend, "forward", 2, 1, 2, 2),
    ):
        with monkeypatch.context() as patch:
            plain = getattr(kind, name)
            patch.setattr(kind, name, lambda *args, plain=plain: 3 * (plain(*args) / 3).tanh())
            assert exit_codes(capsys) == expected
    model = SavedRun.model

    def replace_modules(*args: Any) -> GPT:
        found = model(*args)
        for block in blocks_of(found):
            block.attn_norm = nn.LayerNorm(H * D, elementwise_affine=False)  # type: ignore[assignment]
            block.mlp = nn.Sequential(nn.Linear(H * D, 9), nn.Softplus(), nn.Linear(9, H * D))  # type: ignore[assignment]
        return found

    monkeypatch.setattr(SavedRun, "model", replace_modules)
    assert exit_codes(capsys) == [0, 0, 0, 0]


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert study.main(["--help"]) == 0
    overview = capsys.readouterr().out
    assert overview.startswith(str(study.__doc__))
    for name, (flags, _) in study.COMMANDS.items():
        assert f"{name} " in overview and str(flags.__doc__) in overview
