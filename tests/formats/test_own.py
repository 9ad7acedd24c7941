"""Your own GPTs as modules: opened only if the logits match."""

from collections.abc import Callable
from itertools import product
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
from tests.formats.test_nanogpt import SIZES

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


@pytest.mark.parametrize(("tied", "activation"), [(True, "gelu"), (False, "gelu_new")])
def test_nanogpt_and_mingpt_are_recognized(tied: bool, activation: str) -> None:
    """They have GPT-2's names, but `nn.Linear` instead of the transposed `Conv1D`."""
    args = {"activation_function": activation, "tie_word_embeddings": tied}
    module = make_gpt2(**SIZES | {"vocab_size": len(CHARS), "n_positions": 32}, **args)
    expected = module(TOKENS).logits
    for layer in module.transformer.h:
        for part, name in product((layer.attn, layer.mlp), ("c_attn", "c_fc", "c_proj")):
            if (transposed := getattr(part, name, None)) is not None:
                linear = nn.Linear(*transposed.weight.shape)
                linear.weight, linear.bias = nn.Parameter(transposed.weight.t()), transposed.bias
                setattr(part, name, linear)
    imported = open_module([module], TEXT, None)
    assert_same(imported.model, expected)
    assert imported.model.config.tie_embeddings == tied


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
        "not supported, .* lecture's GPT, the closest, has no lm_head.ln3",
        lambda m: m.lm_head.add_module("ln3", nn.LayerNorm(9)),
    ),
    ("ln_f.weight is missing", lambda m: setattr(m, "ln_f", nn.Identity())),
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
