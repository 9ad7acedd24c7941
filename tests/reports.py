"""A report of a run with random weights."""

import base64
import json
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import study
from lens.subject import MeasureOptions, Subject
from model.gpt import GPT
from page.weights import pack_weights
from tests.conftest import make_run
from training.checkpoint import Header, half_precision, load_snapshot, open_run, save_checkpoint
from training.state import TrainState

CHARS = "\n abcdefghijklmnopqrstuvwxyz"
TEXT = "to be or not"  # as long as the run's block_size


@dataclass
class Report:
    """The report of a run with random weights, and the models that it should reproduce."""

    data: dict[str, Any]
    weights: list[bytes]
    exact: dict[int, GPT]  # by step, before rounding
    models: dict[int, GPT]  # by step, with the weights rounded as in the page
    sequences_BT: torch.Tensor


def make_report(folder: Path) -> Report:
    """Return a report of steps 0 and 1, in 8 bits, and step 3, in 16 bits.

    The logits of step 0 are in the thousands.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        text = "".join(np.random.default_rng(0).choice(list(CHARS), 2000))
        Path("text.txt").write_text(text, newline="\n")
        run = make_run(Path("runs/plain"), CHARS, "text.txt")
        saved = open_run(run, "last")
        exact = {step: saved.model() for step in (0, 1, 3)}
        for step in (0, 1):
            with torch.no_grad():
                for weight in exact[step].parameters():
                    torch.nn.init.normal_(weight)
                if step == 0:
                    exact[step].get_parameter("head.weight").mul_(2_000)
            header = replace(saved.header, state=TrainState(step, train_loss=1.0))
            save_snapshot(run, exact[step], header)
            load_snapshot(exact[step], run / "snapshots" / f"{step:08d}.safetensors")
        save_snapshot(run, exact[3], saved.header)  # the same as the last checkpoint
        flags = ["--source=text.txt", f"--prompt={TEXT}", "--sequences=5", "--checkpoint=last"]
        assert study.main(["report", *flags, "--max_mb=1e308"]) == 0
        room = (run / "report.html").stat().st_size / 1e6 - 0.001
        assert study.main(["report", *flags, f"--max_mb={room}"]) == 0
        subject = Subject("plain", MeasureOptions(source="text.txt"))
        models = {step: rounded(model, step < 3) for step, model in exact.items()}
        return Report(*parse_report(run), exact, models, subject.sequences(5))


def save_snapshot(run: Path, model: GPT, header: Header) -> None:
    path = run / "snapshots" / f"{header.state.step:08d}.safetensors"
    save_checkpoint(path, half_precision(model), header)


def rounded(model: GPT, eight_bits: bool) -> GPT:
    copy = GPT(model.config, model.token_embedding.num_embeddings).eval()
    copy.load_state_dict(pack_weights(model.state_dict(), eight_bits)[1])
    return copy


def parse_report(run: Path) -> tuple[dict[str, Any], list[bytes]]:
    """Return the data and the packed weights of a run's page, those that it opens with first."""
    html = (run / "report.html").read_text(encoding="utf-8")
    (data,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', html, re.S)
    packed = re.findall(r'class="weights">(.*?)</script>', html)
    return json.loads(data), [base64.b64decode(each) for each in packed]
