"""Llama (Touvron et al. 2023): rotary positions, RMSNorm, SwiGLU."""

import math
from typing import Any

from torch import Tensor

from formats.architecture import Architecture, Fields, has_biases, rotary_plain
from model.config import ModelConfig

TABLE: dict[str, tuple[str, ...]] = {
    "model.embed_tokens": ("token_embedding",),
    "model.layers.{}.input_layernorm": ("blocks.{}.attn_norm",),
    "model.layers.{}.self_attn.q_proj": ("blocks.{}.attn.query",),
    "model.layers.{}.self_attn.k_proj": ("blocks.{}.attn.key",),
    "model.layers.{}.self_attn.v_proj": ("blocks.{}.attn.value",),
    "model.layers.{}.self_attn.o_proj": ("blocks.{}.attn.out",),
    "model.layers.{}.post_attention_layernorm": ("blocks.{}.mlp_norm",),
    "model.layers.{}.mlp.gate_proj": ("blocks.{}.mlp.gate",),
    "model.layers.{}.mlp.up_proj": ("blocks.{}.mlp.up",),
    "model.layers.{}.mlp.down_proj": ("blocks.{}.mlp.down",),
    "model.norm": ("final_norm",),
    "lm_head": ("head",),
}


class Llama(Architecture):
    """`LlamaForCausalLM`, with a key and a value for each head."""

    model_type = "llama"
    class_name = "LlamaForCausalLM"
    table = TABLE
    zero_biases = r"$^"
    ignored = r"rotary_emb\.inv_freq$"

    def obstacle(self, config: ModelConfig) -> str | None:
        if config.positions != "rotary":
            return f"model.positions {config.positions}"
        if config.ngrams > 1:
            return f"model.ngrams {config.ngrams}"
        if config.norm != "rmsnorm":
            return f"model.norm {config.norm}"
        if config.activation != "swiglu":
            return f"model.activation {config.activation}"
        return "model.qk_norm true" if config.qk_norm else None

    def to_plain(self, config: ModelConfig) -> dict[str, Any]:
        return rotary_plain() | {
            "hidden_size": config.n_embd,
            "intermediate_size": math.ceil(8 * config.n_embd / 3),
            "num_hidden_layers": config.n_layer,
            "num_attention_heads": config.n_head,
            "num_key_value_heads": config.n_head,
            "max_position_embeddings": config.block_size,
            "hidden_act": "silu",
            "rms_norm_eps": 1e-5,
            "attention_bias": config.bias,
            "mlp_bias": config.bias,
            "attention_dropout": config.attn_dropout,
        }

    def read(self, fields: Fields, tensors: dict[str, Tensor]) -> ModelConfig:
        plain, C = fields.plain, fields.size("hidden_size")
        H = fields.size("num_attention_heads")
        fields.must("intermediate_size", plain.get("intermediate_size"), math.ceil(8 * C / 3))
        fields.must("num_key_value_heads", plain.get("num_key_value_heads", H), H)
        fields.must("head_dim", plain.get("head_dim"), None, C // H)
        fields.must("hidden_act", plain.get("hidden_act", "silu"), "silu")
        fields.must("rms_norm_eps", plain.get("rms_norm_eps", 1e-6), 1e-5)
        fields.rotary(theta=10_000.0, fraction=1.0)
        return ModelConfig(
            block_size=fields.size("max_position_embeddings"),
            n_layer=fields.size("num_hidden_layers"),
            n_head=H,
            n_embd=C,
            positions="rotary",
            norm="rmsnorm",
            activation="swiglu",
            qk_norm=False,
            tie_embeddings=fields.flag("tie_word_embeddings", False),
            bias=has_biases(tensors),
        )
