"""What others call the parts of a Transformer, and how they arrange its weights.

An architecture is a class of the library `transformers`: gpt2.py, persimmon.py, llama.py. Each has
a table from its tensors to those of ours that they join, `{}` standing for the layer.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar

import torch
from torch import Tensor

from common.errors import UserError
from common.fields import brief
from model.config import ModelConfig
from run.checkpoint import shape_of
from training.size import skeleton

# By ours, and by what transformers calls it; the first is written.
ACTIVATIONS = {
    "gelu": ["gelu"],
    "gelu_tanh": ["gelu_new", "gelu_pytorch_tanh"],
    "relu2": ["relu2"],
}


class Architecture(ABC):
    """A decoder-only Transformer as others know it. The attention's letters are those of
    model/attention.py."""

    model_type: ClassVar[str]
    """Its name in a config.json."""
    class_name: ClassVar[str]
    """Its class in `transformers`."""
    table: ClassVar[dict[str, tuple[str, ...]]]
    """Their names, without .weight and .bias, and ours."""
    zero_biases: ClassVar[str]
    """A pattern of the names that must have a bias; one that ours lack is zero there."""
    ignored: ClassVar[str] = r"$^"
    """A pattern of tensors that are constants, and not weights."""

    @abstractmethod
    def obstacle(self, config: ModelConfig) -> str | None:
        """Why it cannot compute what the config says, in the config's words; None if it can."""

    @abstractmethod
    def to_plain(self, config: ModelConfig) -> dict[str, Any]:
        """Its config.json."""

    @abstractmethod
    def read(self, fields: "Fields", tensors: dict[str, Tensor]) -> ModelConfig:
        """The config of a model of ours that computes the same.

        Raises:
            UserError: naming the field that has no counterpart.
        """

    def join(self, name: str, parts: list[Tensor], config: ModelConfig) -> Tensor:
        """Their tensor of that name."""
        return torch.cat(parts)

    def split(self, name: str, tensor: Tensor, count: int, config: ModelConfig) -> list[Tensor]:
        """The parts that `join` joined."""
        return list(tensor.chunk(count))

    def rows(self, n_layer: int) -> Iterator[tuple[str, list[str]]]:
        """The table, for each layer."""
        for theirs, ours in self.table.items():
            for i in range(n_layer) if "{}" in theirs else [0]:
                yield theirs.format(i), [name.format(i) for name in ours]

    def export_weights(self, config: ModelConfig, ours: dict[str, Tensor]) -> dict[str, Tensor]:
        """Our weights, by their names."""
        made = {}
        for theirs, names in self.rows(config.n_layer):
            if f"{names[0]}.weight" not in ours:  # a tied head, no QK-norm
                continue
            weights = [ours[f"{name}.weight"] for name in names]
            made[f"{theirs}.weight"] = self.join(theirs, weights, config)
            if f"{names[0]}.bias" in ours:
                biases = [ours[f"{name}.bias"] for name in names]
            elif re.search(self.zero_biases, theirs):
                biases = [weight.new_zeros(weight.size(0)) for weight in weights]
            else:
                continue
            made[f"{theirs}.bias"] = self.join(theirs, biases, config)
        return {name: tensor.contiguous() for name, tensor in made.items()}

    def clean(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Their weights in float32, without what is a constant."""
        return {n: t.float() for n, t in tensors.items() if not re.search(self.ignored, n)}

    def import_weights(
        self, config: ModelConfig, V: int, theirs: dict[str, Tensor], where: str
    ) -> dict[str, Tensor]:
        """Their clean weights, by our names.

        Raises:
            UserError: naming a tensor that is missing, unknown, or of another shape.
        """
        expected = skeleton(config, V).state_dict()
        left = dict(theirs)
        made: dict[str, Tensor] = {}
        for base, names in self.rows(config.n_layer):
            for kind in ("weight", "bias"):
                name, tensor = f"{base}.{kind}", left.pop(f"{base}.{kind}", None)
                wanted = [f"{n}.{kind}" for n in names if f"{n}.{kind}" in expected]
                if not wanted:
                    left |= {} if tensor is None or spare(name, tensor, theirs) else {name: tensor}
                    continue
                shape = self.join(base, [expected[n] for n in wanted], config).shape
                if tensor is None or tensor.shape != shape:
                    found = "absent" if tensor is None else shape_of(tensor)
                    raise UserError(f"{where}: {name} is {found}, should be {tuple(shape)}")
                parts = self.split(base, tensor, len(wanted), config)
                made |= {n: p.clone() for n, p in zip(wanted, parts, strict=True)}
        if left:
            raise UserError(f"{where}: {min(left)} has no place in a {self.model_type}")
        return made


def has_biases(tensors: dict[str, Tensor]) -> bool:
    """Whether any bias is one: those that ours lack were written as zeros."""
    return any(bool(t.any()) for name, t in tensors.items() if name.endswith(".bias"))


def spare(name: str, tensor: Tensor, theirs: dict[str, Tensor]) -> bool:
    """Whether a tensor that ours lack says nothing: a bias of zeros, or a tied head's copy."""
    if name == "lm_head.weight":
        tables = [t for n, t in theirs.items() if re.search(r"(wte|embed_tokens)\.weight$", n)]
        return any(torch.equal(tensor, table) for table in tables)
    return name.endswith(".bias") and not tensor.any()


class Fields:
    """The fields of a config.json, whoever wrote it."""

    def __init__(self, plain: dict[str, Any], where: str) -> None:
        self.plain, self.where = plain, where

    def size(self, name: str) -> int:
        """A whole number.

        Raises:
            UserError: when it is none.
        """
        value = self.plain.get(name)
        if type(value) is not int or not 0 < value < 10**9:
            raise UserError(f"{self.where}: {name} is {brief(value)}, and should be a whole number")
        return value

    def flag(self, name: str, default: bool) -> bool:
        """True or false."""
        value = self.plain.get(name, default)
        self.must(name, value, True, False)
        return bool(value)

    def must(self, name: str, value: Any, *allowed: Any) -> None:
        """Raises: UserError, for a value that nothing here computes."""
        if not any(type(value) is type(a) and value == a for a in allowed):
            only = " or ".join(map(str, allowed))
            raise UserError(f"{self.where}: {name} is {brief(value)}; only {only} is computed here")

    def activation(self, name: str, default: str) -> Any:
        """The nonlinearity, in our words."""
        value = self.plain.get(name, default)
        self.must(name, value, *(theirs for names in ACTIVATIONS.values() for theirs in names))
        return next(ours for ours, names in ACTIVATIONS.items() if value in names)

    def rotary(self, theta: float, fraction: float) -> None:
        """Raises: UserError, for rotations that are not ours. Transformers 5 has them in a group,
        4 beside the others, with defaults that depend on the architecture."""
        group = self.plain.get("rope_parameters") or {}
        if not isinstance(group, dict):
            raise UserError(f"{self.where}: rope_parameters is {brief(group)}")
        both = {"rope_theta": theta, "partial_rotary_factor": fraction} | self.plain | group
        self.must("rope_theta", float_of(both["rope_theta"]), 10_000.0)
        self.must("partial_rotary_factor", float_of(both["partial_rotary_factor"]), 1.0)
        for name in ("rope_type", "type"):
            self.must("rope_type", both.get(name, "default"), "default")
        self.must("rope_scaling", self.plain.get("rope_scaling"), None)


def float_of(value: Any) -> Any:
    return float(value) if type(value) is int and abs(value) < 2**53 else value


def rotary_plain() -> dict[str, Any]:
    """Our rotations, for transformers 5 (in a group) and 4 (beside the other fields)."""
    same = {"rope_theta": 10_000.0, "partial_rotary_factor": 1.0}
    return same | {"rope_parameters": same | {"rope_type": "default"}}
