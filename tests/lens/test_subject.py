"""A changed attention layer is not studied as the one that lens/formula.py describes."""

from typing import Any

import pytest
from torch import Tensor

from common.errors import UserError
from configs.config import ModelConfig
from lens import capture
from lens.subject import check_attention
from model.attention import attention_weights
from model.gpt import GPT

TINY = ModelConfig(block_size=8, n_layer=2, n_head=2, n_embd=8, zero_init=False)


@pytest.mark.parametrize("numbers", [True, False])
def test_formula_that_the_kernel_does_not_compute_is_rejected(
    monkeypatch: pytest.MonkeyPatch, numbers: bool
) -> None:
    model = GPT(TINY, 9).eval()
    check_attention(model, numbers)

    def biased(q_BHTD: Tensor, k_BHSD: Tensor, *mask: Any) -> Tensor:
        return attention_weights(q_BHTD + 1, k_BHSD, *mask)

    monkeypatch.setattr(capture, "attention_weights", biased)
    with pytest.raises(UserError, match=r"layer 0 .*attention_weights differs"):
        check_attention(model, numbers)
