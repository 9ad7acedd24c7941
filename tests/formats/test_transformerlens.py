"""What docs/models.md says of TransformerLens is true."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import convert
from lens.capture import capture
from lens.measure import repeated
from lens.metrics import induction
from run.checkpoint import open_run
from tests.conftest import make_run


@pytest.fixture
def run(workplace: Path) -> Path:
    """A run with GPT-2's block, and the folder that it was exported to."""
    run = make_run(Path("runs/gpt2"), positions="learned", qk_norm=False, bias=True, block_size=24)
    assert convert.main(["export", str(run), "folder"]) == 0
    return run


@torch.no_grad()
def test_it_computes_the_same_logits_and_patterns(run: Path) -> None:
    from transformer_lens.model_bridge import TransformerBridge

    bridge: Any = TransformerBridge.boot_transformers("folder", device="cpu")
    bridge.cfg.default_prepend_bos = False
    saved = open_run(run)
    model = saved.model(torch.device("cpu"))
    tokens_BT = torch.tensor([saved.tokenizer.encode("to be or not to be").tolist()])
    assert torch.equal(bridge.to_tokens("to be or not to be"), tokens_BT)
    logits, cache = bridge.run_with_cache(tokens_BT)
    seen = capture(model, tokens_BT)
    expected = seen.logits_BTV
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-6 * expected.abs().max().item())
    for i, layer in enumerate(seen.layers):
        torch.testing.assert_close(cache["pattern", i], layer.weights_BHTS, rtol=0, atol=1e-6)


@torch.no_grad()
def test_twice_its_induction_score_is_ours(run: Path) -> None:
    from transformer_lens.head_detector import detect_head

    saved = open_run(run)
    model = saved.model(torch.device("cpu"))
    for weight in model.parameters():
        weight.mul_(3)  # so that heads differ
    tokens_T = repeated(saved.tokenizer.vocab_size, 9, 1)[0]
    weights = [layer.weights_BHTS for layer in capture(model, tokens_T[None]).layers]
    shape = SimpleNamespace(
        n_layers=len(weights), n_heads=2, n_ctx=99, dtype=torch.float32, device="cpu"
    )
    shim: Any = SimpleNamespace(cfg=shape, to_tokens=lambda text: tokens_T[None])
    cache: Any = {("pattern", i, "attn"): weight[0] for i, weight in enumerate(weights)}
    theirs = detect_head(shim, "", "induction_head", cache=cache)
    ours = torch.cat([induction(weights_BHTS) for weights_BHTS in weights])
    torch.testing.assert_close(2 * theirs, ours, rtol=0, atol=1e-5)
    assert ours.std() > 0.01
