"""GPT-2 (Radford et al. 2019): learned positions, matrices transposed, queries, keys and values in
one. And nanoGPT's, under the same names but not transposed."""

import re
from typing import Any

import torch
from torch import Tensor

from formats.architecture import ACTIVATIONS, Architecture, Fields, has_biases
from model.config import ModelConfig

TABLE = {
    "transformer.wte": ("token_embedding",),
    "transformer.wpe": ("position_embedding",),
    "transformer.h.{}.ln_1": ("blocks.{}.attn_norm",),
    "transformer.h.{}.attn.c_attn": (
        "blocks.{}.attn.query",
        "blocks.{}.attn.key",
        "blocks.{}.attn.value",
    ),
    "transformer.h.{}.attn.c_proj": ("blocks.{}.attn.out",),
    "transformer.h.{}.ln_2": ("blocks.{}.mlp_norm",),
    "transformer.h.{}.mlp.c_fc": ("blocks.{}.mlp.up",),
    "transformer.h.{}.mlp.c_proj": ("blocks.{}.mlp.down",),
    "transformer.ln_f": ("final_norm",),
    "lm_head": ("head",),
}


class GPT2(Architecture):
    """`GPT2LMHeadModel`."""

    model_type = "gpt2"
    class_name = "GPT2LMHeadModel"
    table = TABLE
    zero_biases = r"\.h\.|ln_f"
    ignored = r"\.attn\.(bias|masked_bias)$"  # the mask
    transposed = r"\.h\."

    def obstacle(self, config: ModelConfig) -> str | None:
        if config.positions != "learned":
            return f"model.positions {config.positions}"
        if config.ngrams > 1:
            return f"model.ngrams {config.ngrams}"
        if config.norm != "layernorm":
            return f"model.norm {config.norm}"
        if config.activation not in ACTIVATIONS:
            return f"model.activation {config.activation}"
        return "model.qk_norm true" if config.qk_norm else None

    def to_plain(self, config: ModelConfig) -> dict[str, Any]:
        return {
            "n_embd": config.n_embd,
            "n_layer": config.n_layer,
            "n_head": config.n_head,
            "n_positions": config.block_size,
            "activation_function": ACTIVATIONS[config.activation][0],
            "layer_norm_epsilon": 1e-5,
            "embd_pdrop": config.dropout,
            "resid_pdrop": config.dropout,
            "attn_pdrop": config.attn_dropout,
        }

    def read(self, fields: Fields, tensors: dict[str, Tensor]) -> ModelConfig:
        plain, C = fields.plain, fields.size("n_embd")
        fields.must("n_inner", plain.get("n_inner"), None, 4 * C)
        fields.must("layer_norm_epsilon", plain.get("layer_norm_epsilon", 1e-5), 1e-5)
        fields.must("scale_attn_weights", plain.get("scale_attn_weights", True), True)
        for name in ("scale_attn_by_inverse_layer_idx", "reorder_and_upcast_attn"):
            fields.must(name, plain.get(name, False), False)
        fields.must("add_cross_attention", plain.get("add_cross_attention", False), False)
        return ModelConfig(
            block_size=fields.size("n_positions"),
            n_layer=fields.size("n_layer"),
            n_head=fields.size("n_head"),
            n_embd=C,
            positions="learned",
            activation=fields.activation("activation_function", "gelu_new"),
            qk_norm=False,
            tie_embeddings=fields.flag("tie_word_embeddings", True),
            zero_init=False,
            bias=has_biases(tensors),
        )

    def clean(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """The oldest files leave out the first word of each name."""
        return {
            name if name.startswith(("transformer.", "lm_head.")) else f"transformer.{name}": tensor
            for name, tensor in super().clean(tensors).items()
        }

    def join(self, name: str, parts: list[Tensor], config: ModelConfig) -> Tensor:
        joined = torch.cat(parts)
        return joined.t() if re.search(self.transposed, name) else joined

    def split(self, name: str, tensor: Tensor, count: int, config: ModelConfig) -> list[Tensor]:
        joined = tensor.t() if re.search(self.transposed, name) else tensor
        return list(joined.chunk(count))


class NanoGPT(GPT2):
    """nanoGPT's, whose matrices are not transposed."""

    transposed = r"$^"
