"""The model as PyTorch exports, traces, compiles and pickles it, and with adapters."""

import copy
import importlib.util
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from configs.config import ModelConfig
from model.attention import Linear
from model.gpt import GPT, next_token_loss
from tests.model.test_gpt import V, tokens

T = 12


def make(**options: Any) -> GPT:
    """Return a small model with the default blocks, unless options change them."""
    torch.manual_seed(0)
    shape = {"block_size": T, "n_layer": 2, "n_head": 2, "n_embd": 8}
    model = GPT(ModelConfig(**shape | options), V).eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model


VARIABLE: Any = {"dynamic_shapes": ({1: torch.export.Dim("T", min=2, max=T)},)}


def exported(model: GPT) -> Any:
    return torch.export.export(model, (tokens(2, 7),), **VARIABLE).module()


def in_onnx(model: GPT) -> Any:
    program: Any = torch.onnx.export(model, (tokens(2, 7),), dynamo=True, verbose=False, **VARIABLE)
    reference = importlib.import_module("onnx.reference").ReferenceEvaluator(program.model_proto)
    return lambda x: torch.from_numpy(reference.run(None, {reference.input_names[0]: x.numpy()})[0])


FORMS: dict[str, Callable[[GPT], Any]] = {
    "exported": exported,
    "traced": lambda model: torch.jit.trace(model, (tokens(2, 7),)),
    "compiled": lambda model: torch.compile(model, backend="eager", fullgraph=True),
    "pickled": lambda model: pickle.loads(pickle.dumps(model)),
}
if importlib.util.find_spec("onnxscript"):
    FORMS["ONNX"] = in_onnx


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # PyTorch's own
@pytest.mark.parametrize("positions", ["rotary", "learned"])
@pytest.mark.parametrize("form", FORMS)
def test_each_form_computes_the_same_logits_at_every_length(form: str, positions: str) -> None:
    """Lengths are variable from 2 to block_size, and the first one that is computed is another
    than the one that is traced."""
    model = make(positions=positions)
    other = FORMS[form](model)
    for length in (5, T, 2, 7):
        text = tokens(3 if form == "compiled" else 2, length)
        torch.testing.assert_close(other(text), model(text), rtol=1e-5, atol=1e-5)


class Adapted(Linear):
    """A layer with a low-rank adapter, W x + B A x (Hu et al. 2021, LoRA)."""

    def __init__(self, layer: Any) -> None:
        super().__init__(layer.in_features, layer.out_features, bias=False)
        self.weight = layer.weight.requires_grad_(False)
        self.A = nn.Parameter(torch.randn(3, layer.in_features))
        self.B = nn.Parameter(torch.randn(layer.out_features, 3))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + x @ self.A.T @ self.B.T


@pytest.mark.parametrize(
    "name", ["attn.query", "attn.key", "attn.value", "attn.out", "mlp.up", "mlp.down"]
)
def test_adapter_of_any_layer_acts_as_its_product_in_the_weights(name: str) -> None:
    """Its gradients follow from that of the weights."""
    model, text = make(), tokens(2, 9)
    merged = copy.deepcopy(model)
    place, part = name.split(".")
    owner = model.blocks[0].get_submodule(place)
    adapted = Adapted(getattr(owner, part))
    setattr(owner, part, adapted)
    weight = merged.get_parameter(f"blocks.0.{name}.weight")
    weight.data += (adapted.B @ adapted.A).detach()
    for each in (model, merged):
        next_token_loss(each(text[:, :-1]), text[:, 1:]).backward()
    torch.testing.assert_close(model(text), merged(text), rtol=1e-4, atol=1e-4)
    assert weight.grad is not None and weight.grad.norm() > 1e-4
    torch.testing.assert_close(adapted.B.grad, weight.grad @ adapted.A.T, rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(adapted.A.grad, adapted.B.T @ weight.grad, rtol=1e-3, atol=1e-5)
