"""The demo opens from disk, and its pages compute what PyTorch does with the weights in them."""

import base64
import json
import math
import re
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.page import DONE
from model.config import ModelConfig
from model.gpt import GPT
from tests.conftest import ROOT

DEMO = ROOT / "docs/demo"


def unpack(packed: bytes, shapes: list[tuple[str, list[int]]], eight_bits: bool) -> dict[str, Any]:
    """The weights of a snapshot, in the form that lens/report/weights.py describes."""
    weights, start = {}, 0

    def take(count: int, kind: str) -> Any:
        nonlocal start
        taken = np.frombuffer(packed, kind, count, start)
        start += taken.nbytes
        return taken

    for name, shape in shapes:
        rows, width = math.prod(shape[:-1]), shape[-1]
        there = np.unpackbits(take(-(-rows // 8), "u1"), count=rows, bitorder="little") > 0
        scaled, kept = eight_bits and len(shape) == 2, int(there.sum())
        scales = take(kept, "<f4")[:, None] if scaled else 1
        weight = np.zeros((rows, width), "f4")
        weight[there] = scales * take(kept * width, "i1" if scaled else "<f2").reshape(kept, width)
        weights[name] = torch.tensor(weight).reshape(shape)
    assert start == len(packed)
    return weights


@pytest.mark.parametrize("name", ["induction.html", "manual.html"])
def test_a_page_of_the_demo(name: str, browser: Any) -> None:
    file = DEMO / name
    html = file.read_text(encoding="utf-8")
    data = json.loads(re.findall('id="data">(.*?)</script>', html, re.DOTALL)[0])
    packs = re.findall('class="weights">(.*?)<', html)
    steps = [snapshot["step"] for snapshot in data["snapshots"]]
    assert file.stat().st_size <= 3e6 and len(packs) == len(steps) >= 16

    tab = browser.new_context(offline=True).new_page()
    tab.goto((DEMO / "index.html").as_uri())
    tab.click(f"a[href='{name}']")
    tab.wait_for_selector(DONE)
    assert tab.is_visible("#live")  # which the page hides if it does not reproduce PyTorch's logits
    vocab, config = data["vocab"], ModelConfig(**data["run"]["config"]["model"])
    model = GPT(config, len(vocab)).eval()
    tokens = [i for i, label in enumerate(vocab) if label.isalnum()][: config.block_size // 2] * 2
    text = "".join(vocab[i] for i in tokens)
    for i in (len(steps) // 2, -1):
        eight_bits = data["snapshots"][i]["eight_bits"]
        model.load_state_dict(unpack(base64.b64decode(packs[i]), data["shapes"], eight_bits))
        logits_TV = model(torch.tensor([tokens]))[0].detach()
        found = tab.evaluate("([text, step]) => glassgpt.logits(text, { step })", [text, steps[i]])
        np.testing.assert_allclose(found, logits_TV, 1e-4, 1e-4)
    tab.context.close()
