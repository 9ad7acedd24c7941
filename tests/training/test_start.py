"""Which fields of a run may change with --resume and --init_from."""

import pytest

from common.errors import UserError
from configs.load import read_config
from tests.configs.test_load import FIELDS, three_values, unusual
from training.start import check_changes

# The text may have moved. What decides the model and the vocabulary may not change.
TEXT = "source hub_config hub_split column task_kinds task_length task_held_out task_ignored "
TEXT += "task_order val_fraction test_fraction separator dropout attn_dropout attention"
# What neither the sequences nor the updates depend on.
RESUME = "source attention max_steps minutes eval_every eval_tokens log_every sample_tokens "
RESUME += "save_every snapshots tensorboard device precision threads compile"
ALLOWED = {"--resume": RESUME.split(), "--init_from": TEXT.split()}


def test_every_field_changes_only_with_the_flags_that_allow_it() -> None:
    base = unusual()
    for key, (section, name, _) in FIELDS.items():
        before, after, _ = three_values(key)
        new = read_config({section: {name: after}}, None, base)
        for flag, allowed in ALLOWED.items():
            check_changes(base, base, flag)
            if name in allowed or (section == "train" and flag != "--resume"):
                check_changes(base, new, flag)
                continue
            with pytest.raises(UserError) as error:
                check_changes(base, new, flag)
            assert str(error.value) == f"{flag} cannot change {key} from {before} to {after}"
