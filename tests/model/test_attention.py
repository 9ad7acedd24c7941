"""The attention layer, against nn.MultiheadAttention and the formulas, for each kernel."""

import pytest
import torch
from torch import nn

from configs.config import Kernel
from model.attention import MultiHeadAttention, attention, attention_weights, causal_mask

each_kernel = pytest.mark.parametrize("kernel", ["fused", "explicit"])


def make(n_embd: int, n_head: int, kernel: Kernel, dropout: float = 0.0) -> MultiHeadAttention:
    torch.manual_seed(0)
    layer = MultiHeadAttention(n_embd, n_head, kernel=kernel, dropout=dropout).double()
    for projection in (layer.query, layer.key, layer.value, layer.out):
        nn.init.uniform_(projection.bias, 0.5, 1.5)
    return layer


@each_kernel
@pytest.mark.parametrize("case", ["self", "causal", "masked", "masked causal", "cross"])
@pytest.mark.parametrize("shape", [(4, 10, 7, 512, 8), (2, 6, 9, 12, 3), (1, 1, 2, 4, 1)])
def test_equals_torch_multihead_attention(
    kernel: Kernel, case: str, shape: tuple[int, int, int, int, int]
) -> None:
    """Compare the output, its gradient, and the weights, recomputed from inputs of `attend`."""
    B, T, S, C, H = shape
    ours, reference = make(C, H, kernel), nn.MultiheadAttention(C, H, batch_first=True).double()
    weights = [p.detach() for p in ours.parameters()]  # and biases, of query, key, value, out
    joined = (weights[0:6:2], weights[1:6:2], weights[6:7], weights[7:])
    for parameter, parts in zip(reference.parameters(), joined, strict=True):
        parameter.data = torch.cat(parts)
    x = torch.randn(B, T, C, dtype=torch.float64, requires_grad=True)
    source = torch.randn(B, S, C, dtype=torch.float64) if case == "cross" else None
    memory = x if source is None else source
    mask, causal = None, "causal" in case
    if case not in ("self", "causal"):
        mask = torch.rand(T, memory.size(1)) < 0.6
        mask[:, 0] = True
    may_attend = torch.ones(T, memory.size(1)).bool() if mask is None else mask
    if causal:
        may_attend = may_attend & torch.ones(T, T).tril().bool()

    seen = []
    ours.attend.register_forward_hook(lambda module, args, z: seen.append((args, z)))
    output = ours(x, source, mask=mask, causal=causal)
    expected, weights = reference(  # in attn_mask, True masks
        x, memory, memory, attn_mask=~may_attend, average_attn_weights=False
    )
    torch.testing.assert_close(output, expected, rtol=0, atol=1e-12)
    gradients = [torch.autograd.grad(y.square().sum(), x)[0] for y in (output, expected)]
    torch.testing.assert_close(*gradients, rtol=0, atol=1e-9)
    ((q, k, v, mask, _), z) = seen[0]
    torch.testing.assert_close(attention_weights(q, k, mask), weights, rtol=0, atol=1e-12)
    torch.testing.assert_close(attention(q, k, v, mask), z, rtol=0, atol=1e-12)


@each_kernel
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_fully_masked_query_outputs_only_the_bias(kernel: Kernel, dtype: torch.dtype) -> None:
    layer = make(32, 4, kernel).to(dtype)
    x = torch.randn(1, 3, 32, dtype=dtype, requires_grad=True)
    mask = torch.ones(3, 3, dtype=torch.bool)
    mask[1] = False
    output = layer(x, mask=mask)
    torch.testing.assert_close(output[0, 1], layer.out.bias)
    output.sum().backward()
    assert x.grad is not None and x.grad.isfinite().all()


@each_kernel
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention_dropout_zeroes_or_rescales_weights(kernel: Kernel, dtype: torch.dtype) -> None:
    """In evaluation, there is no dropout."""
    attend = make(8, 2, kernel, dropout=0.3).to(dtype).attend
    v = torch.ones(2000, 2, 2, 4, dtype=dtype)
    torch.manual_seed(0)
    inputs = v, v, v, causal_mask(2, 2), True
    alone = attend(*inputs)[:, :, 0, 0]  # the first query has only its own key
    kept = alone[alone != 0]
    assert len(kept) / alone.numel() == pytest.approx(0.7, abs=0.05)
    torch.testing.assert_close(kept, (v.new_ones(()) / 0.7).expand(len(kept)))
    torch.testing.assert_close(attend.eval()(*inputs), v)
