"""The names that other programs have for the parts of a GPT, and the models they can compute.

To add a format, add a `Format` at the end, which maps its tensors and config fields to the names
here.
"""

import re
import reprlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor

from common.errors import UserError, as_user_error
from configs.config import ModelConfig, first_error
from model.gpt import GPT
from training.checkpoint import check_finite

# Names of activations in transformers, and here. An export writes the first one that matches.
ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "relu2": "relu2",
}
# Fields that every format can express, because they do not change what a trained model computes.
# Missing biases are written as zeros.
FREE = {"attention", "bias", "zero_init"}
WITHOUT_BIAS = {"token_embedding", "position_embedding", "head"}
# What attention scores may be multiplied by, as powers of H and D; C is H * D.
SCORES = {"D**-0.5": (0, -0.5), "C**-0.5": (-0.5, -0.5), "1": (0, 0), "1/D": (0, -1)}
# Causal masks that are stored with the weights.
MASKS = (".attn.bias", ".attn.masked_bias", ".tril")


@dataclass(frozen=True)
class Format:
    """The names and the layout of the weights in one program."""

    name: str
    """Its class in the library `transformers`."""

    tensors: dict[str, tuple[str, ...]]
    """Its tensors, and the tensors of `GPT` that each of them joins, without .weight and .bias;
    `{}` is the index of the layer."""

    fields: dict[str, str]
    """Its config fields, and the fields of `ModelConfig` with the same value."""

    required: dict[str, Any]
    """Fields of `ModelConfig` for which it supports a single value. A field in neither table must
    have its default."""

    constants: dict[str, Any] = field(default_factory=dict)
    """Its config fields for which only the default is supported here."""

    defaults: dict[str, Any] = field(default_factory=dict)
    """Defaults of its config fields."""

    scores: Iterable[str] = ("D**-0.5",)
    """What its attention scores may be multiplied by: names from `SCORES`."""

    transposed: str | None = None
    """A substring of the names of matrices with a row for each input, unlike `nn.Linear`."""

    by_head: bool = False
    """Whether queries, keys and values are joined head by head."""

    def rows(self, n_layer: int) -> Iterator[tuple[str, list[str]]]:
        """Yield the rows of `tensors` for each layer."""
        for pattern, ours in self.tensors.items():
            for i in range(n_layer) if "{}" in pattern else [0]:
                yield pattern.format(i), [name.format(i) for name in ours]

    def export_config(self, config: ModelConfig) -> dict[str, Any]:
        """Return its config fields.

        Raises:
            UserError: naming the first field of `ModelConfig` that it cannot express.
        """
        only = vars(type(config)()) | self.required
        # Fields that may say what the default does: no shared keys, no window
        shared = config.kv_heads if config.kv_heads < config.n_head else None
        given = vars(config) | {"n_kv_head": shared, "window": max(config.windows)}
        activations = {ours: name for name, ours in reversed(ACTIVATIONS.items())}
        if config.activation not in activations:
            raise UserError(
                f"ACTIVATIONS in formats/names.py lacks {config.activation}; add its name in "
                f"transformers"
            )
        for name, value in given.items():
            if value != only[name] and name not in FREE | {*self.fields.values()}:
                raise UserError(
                    f"{self.name} of transformers does not support model.{name} "
                    f"{str(value).lower()}"
                )
        values = vars(config) | {"activation": activations[config.activation]}
        values["dropout"] = config.dropout or 0.0
        plain = {name: values[ours] for name, ours in self.fields.items()}
        return plain | self.constants | {"intermediate_size": 4 * config.n_embd}

    def export_tensors(self, model: GPT) -> dict[str, Tensor]:
        """Return the weights of a model under its names.

        Raises:
            UserError: for a weight that has no name or no room there.
        """
        left, made = model.state_dict(), {}
        for name, ours in self.rows(model.config.n_layer):
            if f"{ours[0]}.weight" not in left:  # the head is tied, or there is no QK-norm
                continue
            weights = [left.pop(f"{part}.weight") for part in ours]
            if any(weight.shape != weights[0].shape for weight in weights):
                raise UserError(f"{self.name} needs one shape for {', '.join(ours)}")
            zeros = torch.zeros(weights[0].size(0))
            biases = [left.pop(f"{part}.bias", zeros) for part in ours]
            made[f"{name}.weight"] = self.join(name, weights, model.config.n_head)
            if ours[0] not in WITHOUT_BIAS:
                made[f"{name}.bias"] = self.join(name, biases, model.config.n_head)
        if left:
            raise UserError(f"{self.name} has no tensor for {min(left)}")
        return {name: tensor.contiguous() for name, tensor in made.items()}

    def join(self, name: str, parts: list[Tensor], n_head: int) -> Tensor:
        """Join tensors of `GPT` into the tensor of that name."""
        if self.by_head and len(parts) > 1:
            heads = [part.unflatten(0, (n_head, -1)) for part in parts]
            return torch.stack(heads, dim=1).flatten(0, 2)
        return self.turn(name, torch.cat(parts))

    def turn(self, name: str, tensor: Tensor) -> Tensor:
        """Transpose a tensor that is stored transposed."""
        return tensor.t() if self.transposed and self.transposed in name else tensor

    def import_model(self, plain: dict[str, Any], tensors: dict[str, Tensor], where: Path) -> GPT:
        """Make the model from its config and its tensors.

        Args:
            plain: "scores" in it names what multiplies the attention scores, if not D**-0.5;
                "bias" keeps biases that are all zero.
            where: the file that messages name.

        Raises:
            UserError: for an unsupported model, or weights that do not match the config.
        """
        with as_user_error(where):
            left = {short(name): t for name, t in tensors.items() if not name.endswith(MASKS)}
            # GPT-2 always has biases; if all are zero, they are left out.
            bias = plain.get("bias") or any(
                n.endswith(".bias") and t.any() for n, t in left.items()
            )
            head = [*self.tensors][-1]
            biases = {"bias": bool(bias), "head_bias": f"{head}.bias" in left}
            plain = self.tied(self.defaults | plain, left, where)
            config = self.import_config(plain, biases, where)
            with_bias = {layer_of(n) for n in left if n.endswith(".bias")}
            made: dict[str, Tensor] = {}
            for name, ours in self.rows(config.n_layer):
                for kind in ("weight", "bias"):
                    tensor = left.pop(short(f"{name}.{kind}"), None)
                    if (
                        tensor is None
                        and kind == "bias"
                        and layer_of(short(f"{name}.bias")) in with_bias
                    ):
                        raise UserError(f"{where}: {name}.bias is missing")
                    if tensor is None or (kind == "bias" and not bias):
                        continue
                    parts = self.turn(name, tensor.float()).chunk(len(ours))
                    for ours_name, part in zip(ours, parts, strict=True):
                        made[f"{ours_name}.{kind}"] = part.contiguous().clone()
            if left:
                raise UserError(f"{where}: {min(left)} is not a tensor of {self.name}")
            if config.tie_embeddings:
                made.pop("head.weight", None)  # stored twice
            with torch.device("meta"):  # shapes without numbers
                model = GPT(config, plain["vocab_size"])
            for name, weight in model.named_parameters():
                if name.endswith(".bias"):  # without one, it adds zero
                    made.setdefault(name, torch.zeros(weight.shape))
                found = made.get(name, weight).shape
                if found != weight.shape:
                    raise UserError(
                        f"{where}: {name} is {[*found]}, expected {[*weight.shape]}; grouped "
                        f"queries and gated MLPs are not supported"
                    )
                if ".query" in name:
                    of_H, of_D = SCORES[plain.get("scores", "D**-0.5")]
                    made[name] *= config.n_head**of_H * config.head_width ** (of_D + 0.5)
            model.load_state_dict(made, assign=True)
            check_finite(made)
            return model.eval()

    def tied(
        self, plain: dict[str, Any], tensors: dict[str, Tensor], where: Path
    ) -> dict[str, Any]:
        """Return the config with the field that ties the head to the embedding, which a format
        without such a field does if they are equal.

        Raises:
            UserError: if the config ties them, and they are not equal.
        """
        name = next(name for name, ours in self.fields.items() if ours == "tie_embeddings")
        first, *_, last = self.tensors
        embedding, head = (tensors.get(f"{short(n)}.weight") for n in (first, last))
        equal = head is None or (embedding is not None and torch.equal(head, embedding))
        if plain.get(name) and not equal:
            raise UserError(f"{where}: {name} is true, but {last}.weight is not {first}.weight")
        return {name: equal} | plain

    def import_config(
        self, plain: dict[str, Any], biases: dict[str, Any], where: Path
    ) -> ModelConfig:
        """Make a ModelConfig from its config. Dropout is not imported."""
        for name, value in self.constants.items():
            if plain.get(name, value) != value:
                raise UserError(
                    f"{where}: {name} {reprlib.repr(plain[name])} is not supported, only {value!r}"
                )
        names = {ours: name for name, ours in self.fields.items() if "dropout" not in ours}
        values = self.required | {ours: plain.get(name) for ours, name in names.items()}
        values["activation"] = ACTIVATIONS.get(values["activation"], values["activation"])
        try:
            return ModelConfig(**values, **biases)
        except ValidationError as error:
            ours, message = first_error(error)
            raise UserError(f"{where}: {names.get(ours, ours)} {message}") from None


def layer_of(name: str) -> str:
    """Replace the index of the layer in a tensor's name, which is the same in all layers."""
    return re.sub(r"\.\d+\.", ".{}.", name, count=1)


def short(name: str) -> str:
    """Remove the prefixes of torch.compile, DistributedDataParallel and the model's body."""
    return re.sub(r"^((_orig_mod|module|transformer)\.)*", "", name)


QKV = ("blocks.{}.attn.query", "blocks.{}.attn.key", "blocks.{}.attn.value")

# Radford et al. 2019.
GPT2 = Format(
    name="GPT2LMHeadModel",
    tensors={
        "transformer.wte": ("token_embedding",),
        "transformer.wpe": ("position_embedding",),
        "transformer.h.{}.ln_1": ("blocks.{}.attn_norm",),
        "transformer.h.{}.attn.c_attn": QKV,
        "transformer.h.{}.attn.c_proj": ("blocks.{}.attn.out",),
        "transformer.h.{}.ln_2": ("blocks.{}.mlp_norm",),
        "transformer.h.{}.mlp.c_fc": ("blocks.{}.mlp.up",),
        "transformer.h.{}.mlp.c_proj": ("blocks.{}.mlp.down",),
        "transformer.ln_f": ("final_norm",),
        "lm_head": ("head",),
    },
    fields={
        "n_positions": "block_size",
        "n_layer": "n_layer",
        "n_head": "n_head",
        "n_embd": "n_embd",
        "activation_function": "activation",
        "tie_word_embeddings": "tie_embeddings",
        "embd_pdrop": "dropout",
        "resid_pdrop": "dropout",
        "attn_pdrop": "attn_dropout",
    },
    required={"positions": "learned", "ngrams": 1, "qk_norm": False},
    constants={
        "model_type": "gpt2",
        "layer_norm_epsilon": 1e-5,
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
    },
    defaults={"activation_function": "gelu_new", "tie_word_embeddings": True},
    transposed=".c_",
)

# https://github.com/karpathy/nanoGPT: GPT-2's names, but no transposed matrices.
NANOGPT = Format(
    name="nanoGPT's GPT",
    tensors=GPT2.tensors,
    fields={
        name: name
        for name in ("block_size", "n_layer", "n_head", "n_embd", "activation", "tie_embeddings")
    },
    required=GPT2.required,
    defaults={"activation": "gelu"},
)
# A module with the weights of a GPT under other names, from formats/own.py.
OWN = replace(
    NANOGPT,
    name="your GPT",
    tensors={name: (name,) for names in GPT2.tensors.values() for name in names},
    fields=NANOGPT.fields | {"mlp_ratio": "mlp_ratio"},
    scores=SCORES,  # of Karpathy's lecture, D**-0.5 is in its code, C**-0.5 was typed in the video
)

# Elsen et al. 2023: rotary positions, QK-norm, squared ReLU.
ROTARY = {"rope_theta": 10_000.0, "partial_rotary_factor": 1.0}
PERSIMMON = Format(
    name="PersimmonForCausalLM",
    tensors={
        "model.embed_tokens": ("token_embedding",),
        "model.layers.{}.input_layernorm": ("blocks.{}.attn_norm",),
        "model.layers.{}.self_attn.query_key_value": QKV,
        "model.layers.{}.self_attn.q_layernorm": ("blocks.{}.attn.q_norm",),
        "model.layers.{}.self_attn.k_layernorm": ("blocks.{}.attn.k_norm",),
        "model.layers.{}.self_attn.dense": ("blocks.{}.attn.out",),
        "model.layers.{}.post_attention_layernorm": ("blocks.{}.mlp_norm",),
        "model.layers.{}.mlp.dense_h_to_4h": ("blocks.{}.mlp.up",),
        "model.layers.{}.mlp.dense_4h_to_h": ("blocks.{}.mlp.down",),
        "model.final_layernorm": ("final_norm",),
        "lm_head": ("head",),
    },
    fields={
        "max_position_embeddings": "block_size",
        "num_hidden_layers": "n_layer",
        "num_attention_heads": "n_head",
        "hidden_size": "n_embd",
        "hidden_act": "activation",
        "qk_layernorm": "qk_norm",
        "tie_word_embeddings": "tie_embeddings",
        "hidden_dropout": "dropout",
        "attention_dropout": "attn_dropout",
    },
    required={"positions": "rotary", "ngrams": 1},
    constants={
        "model_type": "persimmon",
        "layer_norm_eps": 1e-5,
        # transformers 5 has the rotary fields in a group, and version 4 among the other fields.
        "rope_parameters": ROTARY | {"rope_type": "default"},
        **ROTARY,
    },
    by_head=True,
)
