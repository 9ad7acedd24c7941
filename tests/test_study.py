"""The numbers that study.py prints equal those of independent computations."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import study
import train
from lens.capture import blocks_of, capture, head_replaced, without_mask
from lens.compare import COMPARISONS, Case, print_numbers
from lens.composition import composition
from lens.formula import layer_steps
from lens.measure import ablate, logit_lens, mean_loss, measure_copying, repeated, score_heads
from lens.metrics import SCORES
from lens.subject import REPEATS, MeasureOptions, Subject, SubjectOptions
from lens.verify import check_model
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


def rows_of(output: str) -> list[str]:
    """Return the lines, with one space between cells."""
    return [" ".join(line.split()) for line in output.splitlines()]


@torch.no_grad()
def test_trace_prints_the_values_of_the_model(run_study: RunStudy, run: Path) -> None:
    flags = [f"--prompt={PROMPT}", "--layer=2", "--head=1", "--checkpoint=last"]
    rows = rows_of(run_study("trace", *flags))
    model, prompt_T, _ = open_model(run, checkpoint="last")
    layer = capture(model, prompt_T[None]).layers[2]
    steps = layer_steps(layer.attn, layer.x_BTC)
    for row, (name, step) in zip(rows[2:], steps.items(), strict=False):
        shown = step.value if step.hidden is None else step.value[~step.hidden]
        statistics = [f"{of():.3f}" for of in (shown.min, shown.double().mean, shown.max)]
        assert row.startswith(name) and row.split()[-3:] == statistics
    assert "1.0000 to 1.0000 506 of 1,058" in " ".join(rows)
    for title, matrix_TS, hidden in (
        ("head 1: scores before the mask", steps["scores"].value[0, 1], 0),
        ("head 1: weights after the softmax;", layer.weights_BHTS[0, 1], 5),
    ):
        (at,) = [i for i, row in enumerate(rows) if row.startswith(title)]
        numbers = [f"{number:.3f}" for number in matrix_TS[2, : 8 - hidden]]
        assert rows[at + 5] == " ".join(["2 e", *numbers, *"·" * hidden])


def test_random_trace_matches_pytorch(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert study.main(["trace", "--random", "4,10,512", "--n_head", "16"]) == 0
    output = capsys.readouterr().out
    shapes = "(4, 10, 512)", "(4, 16, 10, 10)", "(4, 16, 10, 32)", "(5, 3, 8)", "(5, 2, 3, 3)"
    assert all(shape in output for shape in shapes)
    (found,) = [row for row in rows_of(output) if "torch.nn.MultiheadAttention" in row]
    assert 0 < float(found.split()[-1]) < 1e-5
    assert "-10000 where key > query" in output and "-inf" not in output


def test_verify_prints_every_check(run_study: RunStudy, run: Path) -> None:
    rows = rows_of(run_study("verify", f"--prompt={PROMPT}"))[2:]
    model, prompt_T, _ = open_model(run)
    for row, check in zip(rows, check_model(model, prompt_T, torch.float32), strict=True):
        found = [f"{number:.1e}" for number in (check.error, check.tolerance) if number is not None]
        cells = [check.name, check.dtype, check.verdict, *found, check.where]
        assert row == " ".join(cells).strip()


def test_compare_prints_every_comparison(
    run_study: RunStudy, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--layer=1", "--sequences=4", "--steps=40", f"--prompt={PROMPT}"]
    parts = run_study("compare", *flags).strip().split("\n\n")
    subject = Subject("text", MeasureOptions(source="text.txt"))
    model, prompt_T, sequences = open_model(run, 4)
    layer = capture(model, prompt_T[None]).layers[1]
    other_BSC = capture(model, sequences[-1:, : len(prompt_T) * 2 // 3]).layers[1].x_BTC
    case = Case(subject, sequences, 40, layer, other_BSC)
    found: Any = {name: comparison(case) for name, comparison in COMPARISONS.items()}
    capsys.readouterr()
    for (name, expected), part in zip(found.items(), parts, strict=True):
        print_numbers(expected)
        assert part.startswith(f"{name}: ") and capsys.readouterr().out in part
    with without_mask(model):
        assert found["unmasked"]["without it"] == mean_loss(model, sequences)
    with_with, with_without, one, without_with, cheating, other = found["never_masked"].values()
    assert cheating < with_with < without_with and cheating < with_without
    assert len(one) == len(other) == 60 and one != other
    assert run_study("compare", *flags, "--only=scale").strip() == parts[4]


def test_heads_prints_every_measurement(run_study: RunStudy, run: Path) -> None:
    """Use another text, two ablated heads, and a short prompt on which some heads are sinks."""
    model, prompt_T, sequences = open_model(run, 5, "last", TEXT[::-1])
    flags = ["--source=other.txt", "--prompt=the va", "--sequences=5", "--period=7"]
    rows = rows_of(run_study("heads", *flags, "--checkpoint=last", "--without=L0H1,l1h0"))
    with head_replaced(model, 0, 1, 0.0), head_replaced(model, 1, 0, 0.0):
        scores = score_heads(model, prompt_T[None, :6], False)
        scores |= score_heads(model, repeated(28, 7, REPEATS), True)
        changes, lens = ablate(model, sequences), logit_lens(model, sequences)
        first, second, induction_LH = measure_copying(model, 8, REPEATS)
    sinks = [" sink" * bool(score > 0.3) for score in scores["first_token"].flatten()]
    assert [*sorted(set(sinks))] == ["", " sink"]
    numbers = [score.uniform(14 if score.repeats else 6) for score in SCORES]
    expected = [" ".join(["uniform", *(f"{number:.3f}" for number in numbers)])]
    for i, sink in enumerate(sinks):
        cells = [f"{score.flatten()[i]:.3f}" for score in scores.values()]
        zero, zero_error, mean, mean_error = (change.flatten()[i] for change in changes.values())
        cells += [f"{zero:+.4f} ± {zero_error:.4f} {mean:+.4f} ± {mean_error:.4f}"]
        expected.append(" ".join([f"L{i // H}H{i % H}{sink}", *cells]))
    best, (layer, head) = induction_LH.max(), divmod(int(induction_LH.argmax()), H)
    copying = f"{first:.3f} {second:.3f} {second / first:.3f} {best:.3f} L{layer}H{head}"
    Q, K, V = list(composition(model))[6][2].values()
    expected += [f"period 8 no {copying}", f"L0H1 -> L2H0 {Q:.3f} {K:.3f} {V:.3f}"]
    places = ["embedding", *(f"after layer {i}" for i in range(L))]
    expected += [f"{place} {loss:.4f}" for place, loss in zip(places, lens, strict=True)]
    assert {*expected} <= {*rows} and "random 0.177 0.177 0.177" in rows
    assert any(f"loss {lens[-1]:.4f} nats/token on 5 validation sequences" in row for row in rows)


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

COMMANDS = ("trace", "verify", "heads", "compare --steps=1", "report")


def layer_1(model: GPT) -> Any:
    return blocks_of(model)[1]


def share_keys(model: GPT) -> None:
    """Let all queries share the keys and values of a single head."""
    attn = layer_1(model).attn
    attn.key, attn.value = nn.Linear(H * D, D), nn.Linear(H * D, D)
    attn.split_heads = lambda x_BTC: x_BTC.unflatten(-1, (-1, D)).transpose(1, 2)
    attn.attend.kernel = "explicit"


def add_heads(model: GPT) -> None:
    layer_1(model).attn.n_head *= 2


def attend_elsewhere(model: GPT) -> None:
    attn = layer_1(model).attn
    forward = attn.attend.forward
    del attn.attend
    attn.attend = forward


def bias_scores(bias: Callable[[Tensor], Tensor]) -> Callable[[GPT], Any]:
    """Return an edit that adds a function of the distance to the scores."""

    def attend(module: nn.Module, args: Any, z_BHTD: Tensor) -> Tensor:
        q, k, v = args[:3]
        distance_TS = torch.arange(k.size(2))[-q.size(2) :, None] - torch.arange(k.size(2))
        scores = (q @ k.mT / D**0.5 + bias(distance_TS)).masked_fill(distance_TS < 0, -torch.inf)
        return scores.softmax(-1) @ v

    return lambda model: layer_1(model).attn.attend.register_forward_hook(attend)


def replace_modules(model: GPT) -> None:
    """Replace what is not attention."""
    model.__class__, block = Capped, layer_1(model)
    block.attn_norm = nn.LayerNorm(H * D, elementwise_affine=False)
    block.mlp = nn.Sequential(nn.Linear(H * D, 9), nn.Softplus(), nn.Linear(9, H * D))


class Capped(GPT):
    def unembed(self, x_BTC: Tensor) -> Tensor:
        return 3 * (super().unembed(x_BTC) / 3).tanh()


def cap_logits(model: GPT) -> None:
    """Change the logits, but not in `unembed`, which the logit lens calls."""
    model.register_forward_hook(lambda module, args, logits: 3 * (logits / 3).tanh())


KEYS = r"layer 1 .*formula.py: key.weight is \(16, 32\), expected \(32, 32\); update"
WINDOW = "layer 1 .*formula.py: the step 'heads z' differs from position 30 on; update"
EDITS: dict[str, tuple[Any, list[int], str]] = {
    "grouped queries": (share_keys, [2, 2, 2, 2, 2], KEYS),
    "other heads": (add_heads, [2, 2, 2, 2, 2], "layer 1 .*formula.py: 4 heads, expected 2;"),
    "kernel": (attend_elsewhere, [2, 2, 2, 2, 2], "the forward pass .*; update lens/capture.py"),
    "window": (bias_scores(lambda d: (d < 30).log()), [2, 1, 2, 2, 2], WINDOW),
    "ALiBi": (bias_scores(torch.neg), [2, 1, 2, 2, 2], WINDOW.replace("30", "1")),
    "modules": (replace_modules, [0, 0, 0, 0, 0], ""),
    "logits": (cap_logits, [0, 1, 2, 0, 2], "unembed must return the same"),
}


@pytest.mark.parametrize("name", EDITS)
def test_edited_model_is_studied_or_rejected_in_one_line(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """The prompt is shorter than the sliding window."""
    make_run(run, n_layer=2, n_embd=H * D, block_size=T, qk_norm=False)
    (edit, codes, why), plain = EDITS[name], SavedRun.model

    def edited(*args: Any) -> GPT:
        edit(model := plain(*args))
        return model

    monkeypatch.setattr(SavedRun, "model", edited)
    for command, code in zip(COMMANDS, codes, strict=True):
        flags = [f"--prompt={PROMPT}", "--source=text.txt"]
        flags += ["--sequences=2"] * (command not in ("trace", "verify"))
        assert study.main([*command.split(), *flags]) == code, command
        found = capsys.readouterr()
        errors = [line for line in found.err.splitlines() if "error: " in line]
        assert len(errors) == (code == 2) and all(re.search(why, line) for line in errors)
        if code == 1 and edit is not cap_logits:
            assert re.search("each head = formula .*failed .* layer 1, head ., pos", found.out)


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert study.main(["--help"]) == 0
    overview = capsys.readouterr().out
    assert overview.startswith(str(study.__doc__))
    for name, (flags, _) in study.COMMANDS.items():
        assert f"{name} " in overview and str(flags.__doc__) in overview
