"""A changed attention layer is not studied as the one that lens/formula.py describes, nor another
text as the run's."""

from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

import study
import train
from common.errors import UserError
from configs.config import ModelConfig
from lens import capture
from lens.formula import check_attention
from model.attention import attention_weights
from model.gpt import GPT

TINY = ModelConfig(block_size=8, n_layer=2, n_head=2, n_embd=8, zero_init=False)


@pytest.mark.parametrize("numbers", [True, False])
def test_formula_that_the_kernel_does_not_compute_is_rejected(
    monkeypatch: pytest.MonkeyPatch, numbers: bool
) -> None:
    model = GPT(TINY, 9).eval()
    check_attention(model, numbers)

    def biased(q_BHTD: Tensor, k_BHSD: Tensor, *mask: Any) -> Tensor:
        return attention_weights(q_BHTD + 1, k_BHSD, *mask)

    monkeypatch.setattr(capture, "attention_weights", biased)
    with pytest.raises(UserError, match=r"layer 0 .*attention_weights differs"):
        check_attention(model, numbers)


OTHER = " (not the text that the run was trained on; they may share parts)"
SMALL = ["--model.n_layer=1", "--model.n_head=1", "--model.n_embd=8", "--model.block_size=8"]
SMALL += ["--train.max_steps=1", "--train.sample_tokens=0", "--train.tensorboard=false"]


def test_another_text_is_named_beside_its_numbers(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The text was edited and another run has cached it, or a flag names another one."""

    def said(*words: str) -> list[str]:
        """Return the lines that name a text, of each command that measures one."""
        lines = []
        for command in ("evaluate", "heads", "compare", "ngrams"):
            steps = ["--steps=1"] * (command == "compare")
            task = command == "ngrams" and {"task", "--source=repeat_fixed"} & {*words}
            assert study.main([command, *words, *steps]) == (2 if task else 0)
            lines += [
                line
                for line in capsys.readouterr().out.splitlines()
                if not task and ("validation sequences of" in line or "; each split " in line)
            ]
        return lines

    text = Path("text.txt")
    text.write_text("a tale of an owl\n" * 60)
    assert train.main(["--run=before", "--data.source=text.txt", *SMALL]) == 0
    assert train.main(["--run=task", "--data.source=repeat", "--data.task_length=4", *SMALL]) == 0
    for words, count in ((("before",), 4), (("before", "--source=text.txt"), 4), (("task",), 3)):
        lines = said(*words)
        assert len(lines) == count and not any(OTHER in line for line in lines)
    text.write_text(text.read_text()[::-1])
    assert study.main(["evaluate", "before"]) == 2
    assert "the text of the saved run, has changed or is not here" in capsys.readouterr().err
    assert train.main(["--run=after", "--data.source=text.txt", *SMALL]) == 0
    for words in (("before",), ("before", "--source=text.txt"), ("task", "--source=repeat_fixed")):
        lines = said(*words)
        assert lines and all(OTHER in line for line in lines)
