"""Which fields of a run may change with --resume, --init_from and --evaluate."""

import copy

import pytest

from common.errors import UserError
from configs.load import Config
from run.folder import check_changes

# One field of each kind, and the flags with which it may change.
CHANGES = [
    ("data.source", "--resume --init_from --evaluate"),
    ("data.vocab_size", ""),
    ("data.val_fraction", "--init_from"),
    ("data.separator", "--init_from"),
    ("model.n_layer", ""),
    ("model.dropout", "--init_from --evaluate"),
    ("model.attention", "--resume --init_from --evaluate"),
    ("train.seed", "--init_from --evaluate"),
    ("train.learning_rate", "--init_from --evaluate"),
    ("train.minutes", "--init_from --evaluate"),
    ("train.max_steps", "--resume --init_from --evaluate"),
    ("train.eval_every", "--resume --init_from --evaluate"),
    ("train.eval_tokens", "--resume --init_from --evaluate"),
]


@pytest.mark.parametrize(("field", "flags"), CHANGES)
def test_field_changes_only_with_the_flags_that_allow_it(field: str, flags: str) -> None:
    old, new = Config(), copy.deepcopy(Config())
    section, name = field.split(".")
    before = getattr(getattr(old, section), name)
    object.__setattr__(getattr(new, section), name, "other")
    for flag in ("--resume", "--init_from", "--evaluate"):
        check_changes(old, copy.deepcopy(old), flag)
        try:
            check_changes(old, new, flag)
            assert flag in flags
        except UserError as error:
            assert flag not in flags
            assert str(error).startswith(f"{flag} cannot change {field} from {before} to other")
