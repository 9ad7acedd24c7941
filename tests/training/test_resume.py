"""Which fields of a run may change with --resume, --init_from and --evaluate."""

import pytest

from common.errors import UserError
from configs.load import read_config
from tests.configs.test_load import BASE, FIELDS, VALUES
from training.folder import check_changes

# The text may have moved. What decides the model, the vocabulary and the splits may not change.
TEXT = "source unknown counting hub_config hub_split hub_column hub_revision repeat_vocab "
TEXT += "repeat_min_period repeat_max_period task_kinds task_length task_held_out task_ignored "
TEXT += "task_order dropout attn_dropout attention "
# What neither the sequences nor the updates depend on.
RESUME = (
    "source counting hub_revision attention max_steps target_loss eval_every eval_tokens log_every "
)
RESUME += "sample_tokens save_every snapshots tensorboard device precision threads compile"
ALLOWED = {
    "--resume": RESUME.split(),
    "--init_from": (TEXT + "val_fraction test_fraction separator").split(),
    "--evaluate": TEXT.split(),
}


def test_every_field_changes_only_with_the_flags_that_allow_it() -> None:
    for key, (section, name, _) in FIELDS.items():
        before, after, _ = VALUES[key]
        new = read_config({section: {name: after}}, None, BASE)
        for flag, allowed in ALLOWED.items():
            check_changes(BASE, BASE, flag)
            if name in allowed or (section == "train" and flag != "--resume"):
                check_changes(BASE, new, flag)
                continue
            with pytest.raises(UserError) as error:
                check_changes(BASE, new, flag)
            assert str(error.value) == f"{flag} cannot change {key} from {before} to {after}"
