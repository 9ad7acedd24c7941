"""Persimmon (Elsen et al. 2023): rotary positions, QK-norm, squared ReLU; queries, keys and values
in one, head by head."""

from typing import Any

import torch
from torch import Tensor

from formats.architecture import ACTIVATIONS, Architecture, Fields, has_biases, rotary_plain
from model.config import ModelConfig

TABLE = {
    "model.embed_tokens": ("token_embedding",),
    "model.layers.{}.input_layernorm": ("blocks.{}.attn_norm",),
    "model.layers.{}.self_attn.query_key_value": (
        "blocks.{}.attn.query",
        "blocks.{}.attn.key",
        "blocks.{}.attn.value",
    ),
    "model.layers.{}.self_attn.q_layernorm": ("blocks.{}.attn.q_norm",),
    "model.layers.{}.self_attn.k_layernorm": ("blocks.{}.attn.k_norm",),
    "model.layers.{}.self_attn.dense": ("blocks.{}.attn.out",),
    "model.layers.{}.post_attention_layernorm": ("blocks.{}.mlp_norm",),
    "model.layers.{}.mlp.dense_h_to_4h": ("blocks.{}.mlp.up",),
    "model.layers.{}.mlp.dense_4h_to_h": ("blocks.{}.mlp.down",),
    "model.final_layernorm": ("final_norm",),
    "lm_head": ("head",),
}


class Persimmon(Architecture):
    """`PersimmonForCausalLM`."""

    model_type = "persimmon"
    class_name = "PersimmonForCausalLM"
    table = TABLE
    zero_biases = r"\.layers\.|final_layernorm"
    ignored = r"rotary_emb\.inv_freq$"

    def obstacle(self, config: ModelConfig) -> str | None:
        if config.positions != "rotary":
            return f"model.positions {config.positions}"
        if config.ngrams > 1:
            return f"model.ngrams {config.ngrams}"
        if config.norm != "layernorm":
            return f"model.norm {config.norm}"
        return None if config.activation in ACTIVATIONS else f"model.activation {config.activation}"

    def to_plain(self, config: ModelConfig) -> dict[str, Any]:
        return rotary_plain() | {
            "hidden_size": config.n_embd,
            "intermediate_size": 4 * config.n_embd,
            "num_hidden_layers": config.n_layer,
            "num_attention_heads": config.n_head,
            "max_position_embeddings": config.block_size,
            "hidden_act": ACTIVATIONS[config.activation][0],
            "qk_layernorm": config.qk_norm,
            "layer_norm_eps": 1e-5,
            "hidden_dropout": config.dropout,
            "attention_dropout": config.attn_dropout,
        }

    def read(self, fields: Fields, tensors: dict[str, Tensor]) -> ModelConfig:
        plain, C = fields.plain, fields.size("hidden_size")
        fields.must("intermediate_size", plain.get("intermediate_size"), 4 * C)
        fields.must("layer_norm_eps", plain.get("layer_norm_eps", 1e-5), 1e-5)
        fields.rotary(theta=25_000.0, fraction=0.5)
        return ModelConfig(
            block_size=fields.size("max_position_embeddings"),
            n_layer=fields.size("num_hidden_layers"),
            n_head=fields.size("num_attention_heads"),
            n_embd=C,
            positions="rotary",
            activation=fields.activation("hidden_act", "relu2"),
            qk_norm=fields.flag("qk_layernorm", True),
            tie_embeddings=fields.flag("tie_word_embeddings", False),
            bias=has_biases(tensors),
        )

    def join(self, name: str, parts: list[Tensor], config: ModelConfig) -> Tensor:
        if len(parts) == 1:
            return parts[0]
        by_head = [part.unflatten(0, (config.n_head, -1)) for part in parts]
        return torch.stack(by_head, dim=1).flatten(0, 2)

    def split(self, name: str, tensor: Tensor, count: int, config: ModelConfig) -> list[Tensor]:
        if count == 1:
            return [tensor]
        by_head = tensor.unflatten(0, (config.n_head, count, -1))
        return [by_head[:, i].flatten(0, 1) for i in range(count)]
