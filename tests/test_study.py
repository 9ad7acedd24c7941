"""The numbers that study.py prints equal those of independent computations."""

import itertools
import json
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
from lens.capture import blocks_of, capture, head_replaced
from lens.compare import COMPARISONS
from lens.measure import ablate, logit_lens, measure_copying, repeated, score_heads
from lens.scores import periods_to_copy
from lens.subject import MeasureOptions, Subject
from model.gpt import GPT
from tests.conftest import ROOT, make_run
from training.checkpoint import SavedRun, open_run

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
        source = ["--source=text.txt"] * ("--source" not in "".join(flags))
        assert study.main([command, *source, *flags]) == 0
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


def test_trace_prints_a_heads_weights(run_study: RunStudy, run: Path) -> None:
    flags = [f"--prompt={PROMPT}", "--layer=2", "--head=1", "--checkpoint=last"]
    rows = rows_of(run_study("trace", *flags))
    model, prompt_T, _ = open_model(run, checkpoint="last")
    weights_TS = capture(model, prompt_T[None]).layers[2].weights_BHTS[0, 1]
    numbers = [f"{number:.3f}" for number in weights_TS[7, :8]]
    assert rows[-1] == " ".join([f"7 {PROMPT[7]}", *numbers])


def test_random_trace_matches_pytorch(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The first write-up agrees with PyTorch's module. The third has no scale, a finite mask in one
    of two tables, and a ReLU."""
    assert study.main(["random"]) == 0
    output = capsys.readouterr().out
    assert "(4, 8, 10, 64)" in output
    assert output.count("Q K^T / sqrt(D)") == output.count("-10000 where key > query") == 1
    rows = rows_of(output)
    (found,) = [row for row in rows if "torch.nn.MultiheadAttention" in row]
    assert 0 < float(found.split()[-1]) < 1e-5
    lowest = [row.split()[-3] for row in rows if row.startswith("ReLU max(output, 0)")]
    assert lowest == ["0.000", "0.000"]


@pytest.mark.parametrize("command", ["trace", "verify", "scores", "ngrams", "compare", "evaluate"])
def test_json_has_the_numbers_of_the_tables_in_full_precision(
    run_study: RunStudy, run: Path, command: str
) -> None:
    flags = ["--json=out.json", *["--steps=1"] * (command == "compare")]
    output = run_study(command, *flags)
    tables = json.loads(Path("out.json").read_text())["tables"]
    cells = [cell for table in tables for row in table for cell in row]
    for cell in itertools.chain(*(cell if isinstance(cell, list) else [cell] for cell in cells)):
        if isinstance(cell, float | int):
            forms = {f"{cell:{form}}" for form in (".1e", ".1f", ".3f", "+.4f", ".4f", ".4g", ",")}
            assert forms & {*output.split()}, cell
        else:
            assert (cell or "") in output
    assert sum(isinstance(cell, float) and cell != round(cell, 5) for cell in cells) > 5


def test_compare_prints_every_comparison(run_study: RunStudy, run: Path) -> None:
    flags = ["--sequences=4", "--steps=20", f"--prompt={PROMPT}"]
    output = run_study("compare", *flags)
    assert re.findall(r"^(\w+)\n-", output, re.MULTILINE) == [*COMPARISONS]
    losses = re.findall(r"trained \w+: loss .* ([\d.]+)", output)
    with_with, with_without, without_with, cheating = map(float, losses)
    assert cheating < with_with < min(with_without, without_with)
    first, _, scale = run_study("compare", *flags, "--only=scale").partition("\n")
    assert first.endswith(f"; losses on 4 of 13 validation sequences of {T} tokens of text.txt")
    assert output.startswith(first) and scale.strip() in output


def test_scores_prints_every_measurement(
    run_study: RunStudy, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Use another text, two ablated heads, and a short prompt on which some heads are sinks."""
    monkeypatch.setenv("COLUMNS", "200")
    model, prompt_T, sequences = open_model(run, 5, "last", TEXT[::-1])
    flags = ["--source=other.txt", "--prompt=the va", "--sequences=5", "--period=7"]
    rows = rows_of(run_study("scores", *flags, "--checkpoint=last", "--without=L0H1,l1h0"))
    with head_replaced(model, 0, 1, 0.0), head_replaced(model, 1, 0, 0.0):
        scores = score_heads(model, prompt_T[None, :6], False)
        scores |= score_heads(model, repeated(28, 7, 64), True)
        changes, lens = ablate(model, sequences), logit_lens(model, sequences)
        first, second, _ = measure_copying(model, 8)
    cells = [f"{score[2, 1]:.3f}" for score in scores.values()]
    zero, zero_error, mean, mean_error = (change[2, 1] for change in changes.values())
    cells += [f"{zero:+.4f} ± {zero_error:.4f} {mean:+.4f} ± {mean_error:.4f}"]
    sink = " sink" if scores["first_token"][2, 1] > 0.3 else ""
    expected = [" ".join([f"L2H1{sink}", *cells]), "random 0.177 0.177 0.177"]
    assert any(row.startswith(f"period 8 no {first:.3f} {second:.3f} ") for row in rows)
    expected += [f"after layer {i} {loss:.4f}" for i, loss in enumerate(lens[1:])]
    assert {*expected} <= {*rows} and any(f"loss {lens[-1]:.4f} nats" in row for row in rows)


def test_run_on_repeats_can_be_studied(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--model.n_embd=16", "--model.n_head=2", "--train.max_steps=3"]
    flags += ["--train.sample_tokens=0", "--train.precision=float32", "--run=copying"]
    assert train.main([str(ROOT / "configs/tasks/induction.yaml"), *flags]) == 0
    for command in ("trace", "verify", "compare --only=never_masked --steps=2"):
        assert study.main(command.split()) == 0
    capsys.readouterr()
    assert study.main(["scores", "--sequences=3"]) == 0
    trained = dict(re.findall(r"period (\d+) +(yes|no)", capsys.readouterr().out))
    assert trained == {"4": "no", "8": "yes", "20": "yes", "32": "yes", "40": "no", "48": "no"}
    strings = Subject("copying", MeasureOptions()).prompt_T
    assert torch.equal(strings, repeated(64, 20, 1)[0])
    (workplace / "text.txt").write_text("ABCDEFGHIJ" * 200)  # the last 200 are held out
    text = Subject("copying", MeasureOptions(source="text.txt"))
    assert text.tokenizer.decode(text.prompt_T.tolist()).startswith("ABCDEFGHIJAB")


def test_large_model_is_measured_on_fewer_sequences(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    subject = Subject("text", MeasureOptions(source="text.txt"))
    passes = 2 * L * H * T * 2 * subject.model.num_parameters()
    for enough, count in ((0.0, 2), (5.5, 5)):
        monkeypatch.setattr("lens.subject.ENOUGH", enough * passes)
        assert len(subject.sequences(None)) == count


def test_copying_periods_are_at_least_two_tokens(run: Path) -> None:
    make_run(run, block_size=8)
    assert periods_to_copy(Subject("text", MeasureOptions())) == [2, 4]


# --- edited models -------------------------------------------------------------------------------

COMMANDS = ("trace", "verify", "scores", "compare --steps=1", "report")


def change_late_positions(model: GPT) -> None:
    """Change layer 1 from position 30 on, which is beyond the prompt, as a sliding window does."""

    def change(module: nn.Module, args: Any, z_BHTD: Tensor) -> Tensor:
        return torch.cat((z_BHTD[:, :, :30], 2 * z_BHTD[:, :, 30:]), dim=2)

    blocks_of(model)[1].attn.attend.register_forward_hook(change)


def replace_mlp(model: GPT) -> None:
    block: Any = blocks_of(model)[1]
    block.mlp = nn.Sequential(nn.Linear(H * D, 9), nn.Softplus(), nn.Linear(9, H * D))


# The edit, the exit code of each command, and the reason in the line of an error.
EDITS: dict[str, tuple[Any, list[int], str]] = {
    "window": (
        change_late_positions,
        [2, 1, 2, 2, 2],
        r"layer 1 .*formula\.py.*: the step 'heads z' differs; verify",
    ),
    "MLP": (
        replace_mlp,
        [0, 0, 0, 0, 2],
        r"the page supports only the model that the config describes: .*blocks.1.mlp",
    ),
}


@pytest.mark.parametrize("name", EDITS)
def test_edited_model_is_studied_or_rejected_in_one_line(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    make_run(run, n_layer=2, n_embd=H * D, block_size=T)
    (edit, codes, why), plain = EDITS[name], SavedRun.model

    def edited(*args: Any) -> GPT:
        edit(model := plain(*args))
        return model

    monkeypatch.setattr(SavedRun, "model", edited)
    for command, code in zip(COMMANDS, codes, strict=True):
        flags = [f"--prompt={PROMPT}", "--source=text.txt"]
        flags += ["--sequences=2"] * (command not in ("trace", "verify"))
        assert study.main([*command.split(), *flags]) == code, command
        errors = [line for line in capsys.readouterr().err.splitlines() if "error: " in line]
        assert len(errors) == (code == 2) and all(re.search(why, line) for line in errors)


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert study.main(["--help"]) == 0
    overview = capsys.readouterr().out
    assert overview.startswith(str(study.__doc__))
    for name, (flags, *_) in study.COMMANDS.items():
        assert f"{name} " in overview and str(flags.__doc__) in overview
