"""The data in a report page, against PyTorch, and the page's size. page/test_page.py tests what the
page's engine uses."""

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import study
import train
from lens.capture import capture
from lens.measure import ablate, logit_lens, measure_copying, score_heads
from lens.report_data import choose_opening, choose_snapshots, through_training
from lens.subject import MeasureOptions, Subject
from page.html import SUPPORTED
from tests.conftest import DEBUG, make_run
from tests.reports import CHARS, Report, parse_report, save_snapshot
from training.checkpoint import open_run
from training.state import TrainState


@torch.no_grad()
def test_snapshot_data_matches_direct_measurements(report: Report) -> None:
    sequences_BT = report.sequences_BT
    assert [snapshot["step"] for snapshot in report.data["snapshots"]] == list(report.exact)
    for snapshot, exact, model in zip(
        report.data["snapshots"], report.exact.values(), report.models.values(), strict=True
    ):
        *copying, scores = measure_copying(exact, snapshot["copying"]["period"])
        scores |= score_heads(exact, sequences_BT[:, :-1], repeats=False)
        for key, score_LH in scores.items():
            assert snapshot["scores"][key] == pytest.approx(score_LH.flatten().tolist(), abs=2e-6)
        copies = [snapshot["copying"]["first"], snapshot["copying"]["second"]]
        assert copies == pytest.approx(copying)
        assert snapshot["lens_loss"] == pytest.approx(logit_lens(exact, sequences_BT))
        reference_BT = torch.tensor([report.data["reference"]])
        logits_TV, exact_TV = (copy.deepcopy(m).double()(reference_BT)[0] for m in (model, exact))
        assert snapshot["rounding"] == (logits_TV - exact_TV).abs().max().item()


def test_ablation_uses_the_unrounded_weights(report: Report) -> None:
    model, sequences_BT = report.exact[3], report.sequences_BT
    expected: dict[str, Any] = {
        key: pytest.approx(change_LH.flatten().tolist(), abs=1e-6)
        for key, change_LH in ablate(model, sequences_BT).items()
    }
    assert report.data["ablation"] == expected


@torch.no_grad()
def test_opening_has_the_head_that_copies_most(workplace: Path) -> None:
    """Let each head write only what it takes from one token."""
    make_run(Path("runs/a"), CHARS)
    for prompt in ("to be", "or not", "so be it", "many to", "zany"):
        subject = Subject("a", MeasureOptions(prompt=prompt))
        model, text, found = subject.model, subject.prompt_T.tolist(), []
        seen = capture(model, subject.prompt_T[None])
        scale = model.get_parameter("final_norm.weight") / seen.residual[-1][0, -1].std()
        for layer in seen.layers:
            for h, weights_TS in enumerate(layer.weights_BHTS[0]):
                z_SHD = torch.zeros_like(layer.v_BHSD[0].movedim(0, 1))
                z_SHD[:, h] = weights_TS[-1, :, None] * layer.v_BHSD[0, h]
                logits_SV = model.head(layer.attn.out(z_SHD.flatten(1)) * scale)  # type: ignore[misc]
                logits_SV = logits_SV - logits_SV.mean(1, keepdim=True)
                copied_SV = logits_SV * seen.logits_BTV[0, -1].softmax(0)
                found.append(float(copied_SV[range(len(text)), text].max()))
        head = found.index(max(found))
        assert choose_opening(subject, torch.empty(0)) == {"text": text, "head": head}


@given(st.lists(st.floats(0, 9), min_size=1, max_size=9), st.floats(1, 10), st.integers(0, 8))
def test_chosen_snapshots_fit_and_keep_first_last_and_shown(
    losses: list[float], count: float, shown: int
) -> None:
    shown %= len(losses)
    chosen = choose_snapshots(losses, count, shown)
    assert len(chosen) == min(len(losses), int(count)) and chosen == sorted({*chosen})
    kept = {0, len(losses) - 1} & {*chosen}
    assert shown in chosen and (len(kept) == len({0, len(losses) - 1}) or len({*chosen} - kept) < 2)


def test_page_keeps_to_max_mb(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A model whose activation the engine lacks has no page."""
    Path("text.txt").write_text("to be or not " * 200)
    run = make_run(Path("runs/a"), CHARS, "text.txt", block_size=13)
    report = ["report", "--source=text.txt", "--sequences=2", "--prompt=to be"]
    assert study.main([*report, "--max_mb=0.1"]) == 2
    enough = float(capsys.readouterr().err.split("--max_mb ")[1].split()[0])
    assert study.main([*report, f"--max_mb={enough}"]) == 0
    assert (run / "report.html").stat().st_size <= enough * 1e6
    with monkeypatch.context() as patch:
        patch.setattr(
            "lens.report.through_training", lambda subject: ((i, subject.model) for i in range(9))
        )
        assert study.main([*report, "--max_mb=1e308"]) == 0
        whole = (run / "report.html").stat().st_size / 1e6
        part = enough + (whole - enough) / 4
        assert study.main([*report, f"--max_mb={part}"]) == 0
        assert (run / "report.html").stat().st_size <= part * 1e6
        steps = [snapshot["step"] for snapshot in parse_report(run)[0]["snapshots"]]
        assert (steps[0], steps[-1]) == (0, 8) and 2 < len(steps) < 9
    data, _ = parse_report(run)
    assert "".join(data["vocab"][i] for i in data["reference"]) == "to beto beto "
    uniform = {info["key"]: info["uniform"] for info in data["scores"]}
    assert uniform["own_position"] == pytest.approx(sum(1 / q for q in range(2, 14)) / 12)
    monkeypatch.setitem(SUPPORTED, "activation", ["relu"])
    assert study.main(report) == 2
    assert "error: the page does not support activation relu2" in capsys.readouterr().err


def test_snapshots_of_the_whole_run_are_shown_except_those_that_are_cut(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The best weights are those of step 2."""
    run = make_run(Path("runs/a"), CHARS)
    saved = open_run(run, "last")
    for step in (0, 1, 2, 3):
        header = replace(saved.header, state=TrainState(step))
        save_snapshot(run, saved.model(), header)
    cut = Path("runs/a/snapshots/00000000.safetensors")
    cut.write_bytes(cut.read_bytes()[:-1])
    shown = [step for step, _ in through_training(Subject("a", MeasureOptions()))]
    assert shown == [1, 2, 3]
    assert f"left out: {cut} cannot be opened: " in capsys.readouterr().err


def test_report_names_no_folder_of_the_text(workplace: Path) -> None:
    """The measured sequences are named, too."""
    names = [Path("books"), Path("a, b")]
    for folder in names:
        folder.mkdir()
        (folder / "text.txt").write_text("to be or not " * 200)
    sources = [str(workplace / folder / "text.txt") for folder in names]
    flags = ["--train.max_steps=1", "--train.sample_tokens=0", "--run=a"]
    flags += [f"--data.source={source}" for source in sources]
    assert train.main([DEBUG, *flags]) == 0
    assert study.main(["report", "a", "--sequences=2"]) == 0
    page = Path("runs/a/report.html").read_text()
    assert str(workplace) not in page and "books" not in page
    data, _ = parse_report(Path("runs/a"))
    assert data["run"]["config"]["data"]["source"] == ["text.txt", "text.txt"]
    B = data["run"]["config"]["model"]["block_size"]
    many = Subject("a", MeasureOptions()).batches.validation_tokens // B
    measured = f"2 of {many} validation sequences of {B} tokens of text.txt, text.txt"
    assert data["measured"] == measured
