"""The report page in a notebook cell, for a run and for a custom model."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from benchmarks.browser import DONE
from common.errors import UserError
from lens.notebook import show
from model.gpt import Block
from tests.conftest import make_run
from tests.formats.lecture import GPTLanguageModel

TEXT = "".join(np.random.default_rng(0).choice(list("\n 'abcdefghijklmno<>&"), 3000))


def test_cell_of_a_custom_model_matches_pytorch(workplace: Path, browser: Any) -> None:
    torch.manual_seed(0)
    models = [GPTLanguageModel(len(set(TEXT))) for _ in range(2)]
    for each in models:
        for name, weight in each.named_parameters():
            # At step 0, many models have biases of zero, and MLPs whose activation does not matter.
            zero = each is models[0] and name.endswith((".bias", "net.2.weight"))
            nn.init.normal_(weight, std=0.0 if zero else 0.3)
    cell = show(models, TEXT, sequences=2)._repr_html_()

    tab = browser.new_context(offline=True).new_page()
    tab.set_content(cell)
    frame = tab.frames[1]
    frame.wait_for_selector(DONE)
    assert frame.is_visible("#live")  # hidden if the logits differ from PyTorch's
    typed, ids = "a<b>&'", {char: i for i, char in enumerate(sorted(set(TEXT)))}
    for step, each in enumerate(models):
        found = frame.evaluate(f"(text) => glassgpt.logits(text, {{step: {step}}})", typed)
        expected = each.eval()(torch.tensor([[ids[char] for char in typed]]))[0][0].detach()
        np.testing.assert_allclose(found, expected, atol=0.01 * float(expected.abs().max()))
    frame.fill("#typed", "abc")
    tab.wait_for_timeout(500)  # a frame has no address in which the page could store its state
    assert frame.locator("#text .token").all_inner_texts() == [*"abc"]
    assert not frame.is_visible("#trouble")
    tab.context.close()


def test_show_checks_model_max_mb_and_text(
    workplace: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    make_run(Path("runs/a"))
    text = TEXT.translate(str.maketrans("'<>&", "xyz "))
    show("a", text, sequences=2)
    assert "1 of 1 snapshots fit --max_mb" in capsys.readouterr().err
    with pytest.raises(UserError, match=r"exceeds 0\.001 MB; set --max_mb"):
        show("a", text, max_mb=0.001)
    with monkeypatch.context() as patch, pytest.raises(UserError, match="the page supports only"):
        patch.setattr(Block, "forward", lambda block, x_BTC, cache=None: x_BTC)
        patch.setattr("lens.report_data.describe", None)  # nothing is measured
        show("a", text)
    model: Any = GPTLanguageModel(5)
    with pytest.raises(UserError, match="give the training text"):
        show(model)
    wrong: Any
    with pytest.raises(UserError, match=r"^text must be a str, got \w+; pass path.read_text"):
        show(model, Path("text.txt"))  # type: ignore[arg-type]
    for wrong in (model.forward, [model, model.state_dict()]):
        with pytest.raises(UserError, match=r"^.* is not a supported module: .*$"):
            show(wrong, text)
    with pytest.raises(UserError, match=r"^promt is unknown; did you mean prompt\?$"):
        show(model, text, promt="to be")
