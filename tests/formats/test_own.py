"""Your own GPTs as modules: opened only if the logits match."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from torch import Tensor, nn

from common.errors import UserError
from formats.names import SCORES
from formats.own import open_module
from tests.formats.lecture import GPTLanguageModel, Head
from tests.formats.models import TEXT, make_gpt2, save_tokenizer

CHARS = sorted(set(TEXT))
TOKENS = torch.randint(len(CHARS), (3, 32), generator=torch.Generator().manual_seed(4))


def lecture(activation: nn.Module | None = None) -> GPTLanguageModel:
    """Return the lecture's model in training mode: 12 heads, weights far from zero."""
    torch.manual_seed(0)
    model = GPTLanguageModel(len(CHARS), activation=activation)
    for weight in model.parameters():
        nn.init.normal_(weight, std=0.3)
    return model


class LastPosition(GPTLanguageModel):
    """Without targets, it returns the logits of the last position, as nanoGPT does."""

    def forward(self, idx: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        logits, loss = super().forward(idx, targets)
        return (logits[:, [-1]] if targets is None else logits), loss


@torch.no_grad()
def assert_same(found: Any, logits_BTV: Tensor) -> None:
    difference = (found(TOKENS) - logits_BTV).abs().max()
    assert difference < 1e-5 * logits_BTV.abs().max()


@pytest.fixture(params=SCORES)
def factor(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Multiply the scores by each of the supported factors."""
    monkeypatch.setattr(Head, "factor", request.param)


def test_module_computes_the_same_logits(tmp_path: Path, factor: None) -> None:
    for ours, activation in (
        ("relu", nn.ReLU()),
        ("gelu", nn.GELU()),
        ("gelu_tanh", nn.GELU("tanh")),
    ):
        model = lecture(activation)
        last = LastPosition(len(CHARS), activation)
        last.load_state_dict(model.state_dict())
        for part in (model, nn.DataParallel(model), last) if ours == "relu" else (model,):
            imported = open_module([part], TEXT, None)
            assert imported.model.config.activation == ours and model.blocks[1].training
            assert "".join(CHARS) == imported.tokenizer.decode(range(len(CHARS)))
            assert_same(imported.model, model.eval()(TOKENS)[0])
            model.train()
    reference = make_gpt2(activation_function="relu")
    save_tokenizer(tmp_path)
    imported = open_module([reference], TEXT, Tokenizer.from_file(str(tmp_path / "tokenizer.json")))
    assert_same(imported.model, reference(TOKENS).logits)
    assert imported.tokenizer.vocab_size == 300


class Layer(nn.Module):
    """With names of its own, which do not tell the heads, the MLP before the attention, and values
    before queries and keys."""

    def __init__(self, C: int, H: int) -> None:
        super().__init__()
        self.a, self.up, self.down = nn.LayerNorm(C), nn.Linear(C, 3 * C), nn.Linear(3 * C, C)
        self.b, self.v, self.k = nn.LayerNorm(C), nn.Linear(C, C), nn.Linear(C, C, bias=False)
        self.q, self.o, self.split = nn.Linear(C, C, bias=False), nn.Linear(C, C), H

    def forward(self, x: Tensor) -> Tensor:
        normed, split = self.b(x), (x.size(0), x.size(1), self.split, -1)
        q, k, v = (f(normed).view(split).transpose(1, 2) for f in (self.q, self.k, self.v))
        z = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(z.transpose(1, 2).flatten(2))
        return x + self.down(nn.functional.gelu(self.up(self.a(x))))


class OwnNames(nn.Module):
    """Tied, positions first."""

    def __init__(self, V: int, C: int = 24, T: int = 32) -> None:
        super().__init__()
        self.where, self.what = nn.Parameter(torch.zeros(1, T, C)), nn.Embedding(V, C)
        self.layers, self.last = nn.ModuleList(Layer(C, 6) for _ in range(2)), nn.LayerNorm(C)

    def through(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x

    def forward(self, ids: Tensor) -> Tensor:
        x = self.what(ids) + self.where[:, : ids.size(1)]
        return self.last(self.through(x)) @ self.what.weight.T


class Encoder(OwnNames):
    """nn.TransformerEncoder, whose queries, keys and values are one parameter."""

    def __init__(self, V: int, C: int = 24) -> None:
        super().__init__(V)
        layer = nn.TransformerEncoderLayer(C, 3, 2 * C, norm_first=True, batch_first=True)
        self.layers: Any = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def through(self, x: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(x.size(1))
        return self.layers(x, mask=mask, is_causal=True)


@pytest.mark.parametrize("kind", [OwnNames, Encoder])
def test_names_and_order_are_free(kind: Callable[[int], nn.Module]) -> None:
    """Also of the same module at an earlier step."""
    modules = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        modules.append(kind(len(CHARS)).eval())
        for weight in modules[-1].parameters():
            nn.init.normal_(weight, std=0.3)
    imported = open_module(modules, TEXT, None)
    for found, module in zip((*imported.earlier, imported.model), modules, strict=True):
        assert_same(found, module(TOKENS))


Change = Callable[[GPTLanguageModel], Any]
CHANGES: list[tuple[str, Change]] = [
    (
        "computes different logits from the same weights: largest",
        lambda m: setattr(m, "blocks", lecture(nn.SiLU()).blocks),
    ),
    (
        r"different logits .*\d; tried gelu, .*; scores \* D\*\*-0.5, C\*\*-0.5, 1, 1/D$",
        lambda m: setattr(m.get_submodule("blocks.0.sa.heads.0"), "factor", "0.3"),
    ),
    (
        r"expected .* MLP \(nC, C\), \(C, nC\); outside .* 'lm_head.ln3': \(9,\)",
        lambda m: m.lm_head.add_module("ln3", nn.LayerNorm(9)),
    ),
    (r"a norm \(C\) .* outside the layers, it has", lambda m: setattr(m, "ln_f", nn.Identity())),
    (r"outside the layers, it has", lambda m: setattr(m, "blocks", nn.Identity())),
    ("return the logits of each position", lambda m: setattr(m, "forward", lambda *args: args[0])),
    ("is not in float32; call model", lambda m: m.bfloat16()),
]


def test_unsupported_model_or_text_is_rejected_in_one_line() -> None:
    for message, change in CHANGES:
        model = lecture()
        change(model)
        with pytest.raises(UserError, match=message) as raised:
            open_module([model], TEXT, None)
        (line,) = raised.value._render_traceback_()  # what a notebook shows
        assert line.startswith("error: GPTLanguageModel") and "\n" not in line
    with pytest.raises(UserError, match=f"has 3 .*the model's vocabulary has {len(CHARS)}"):
        open_module([lecture()], "the", None)
