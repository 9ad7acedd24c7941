"""TransformerLens opens an exported run, as docs/models.md says."""

from pathlib import Path

import pytest
import torch

from formats.__main__ import main
from lens.capture import capture
from tests.conftest import make_run
from training.checkpoint import open_run


@torch.no_grad()
def test_transformerlens_matches_logits_and_patterns(workplace: Path) -> None:
    pytest.importorskip("transformer_lens")
    from transformer_lens.model_bridge import TransformerBridge

    run = make_run(Path("runs/gpt2"), positions="learned", qk_norm=False, bias=True, block_size=24)
    assert main(["export", str(run), "folder"]) == 0
    bridge = TransformerBridge.boot_transformers("folder", device="cpu")
    bridge.cfg.default_prepend_bos = False
    saved = open_run(run)
    model = saved.model()
    tokens_BT = torch.tensor([saved.tokenizer.encode("to be or not to be").tolist()])
    assert torch.equal(bridge.to_tokens("to be or not to be"), tokens_BT)
    logits, cache = bridge.run_with_cache(tokens_BT)
    seen = capture(model, tokens_BT)
    expected = seen.logits_BTV
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-6 * expected.abs().max().item())
    for i, layer in enumerate(seen.layers):
        torch.testing.assert_close(cache["pattern", i], layer.weights_BHTS, rtol=0, atol=1e-6)
