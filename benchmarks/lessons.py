"""Check what lessons 3, 7, 8 and 10 claim of the run `default` on other texts than its own.

python -m benchmarks.lessons [TEXT ...]

A TEXT is a file or a glob: the manual of another Python, which that Python writes with
`from pydoc_data.topics import topics; print(*map(topics.get, sorted(topics)), sep="\\n")`.
A run is trained on each, and on this Python's manual without four topics. A row is a claim that one
number is larger than another; it shows how many times as large, as the median of the texts and the
range. If that is at most 1 on any text, the exit code is 1.
"""

import sys
import tempfile
from functools import partial
from pathlib import Path
from pydoc_data.topics import topics

import torch

from benchmarks import common as frame
from common.errors import command
from lens.capture import head_replaced, hooked
from lens.compare import Case, one_head
from lens.measure import ablate, mean_loss, mean_outputs, score_heads, token_losses
from lens.subject import MeasureOptions, Subject


def claims(source: str, run: Path) -> frame.Row:
    """Return, for each claim, how many times as large the first number is."""
    subject = Subject(str(run), MeasureOptions(source=source))
    model, text_BT, layer = subject.model, subject.sequences(None), subject.layer(0)
    scores = score_heads(model, text_BT[:, :-1], repeats=False)
    score_LH, far = scores["previous_token"], scores["mean_distance"][0].argmax()
    changes = ablate(model, text_BT)
    best, costly = (divmod(int(x.argmax()), x.size(1)) for x in (score_LH, changes["zero"]))
    A = subject.layer(best[0]).weights_BHTS[0, best[1], 1:]
    previous = A.argmax(-1) == torch.arange(len(A))
    far_TS = layer.weights_BHTS[0, far, 2:].tril()  # two or more positions back
    *_, apart = one_head(Case(subject, text_BT, 0, layer, layer.x_BTC)).values()
    four, places = score_LH.flatten().topk(4)
    costs = changes["zero"].flatten()[places].clamp(min=1e-4)
    ablated = []
    for name, part in model.named_modules():
        if name.endswith((".attn", ".mlp")):
            with hooked([part], lambda _module, _args, output: 0 * output):
                ablated.append(mean_loss(model, text_BT))
    losses = []
    for value in 0.0, mean_outputs(model, text_BT)[costly]:
        with head_replaced(model, *costly, value):
            losses.append(token_losses(model, text_BT).mean(1))
    paired_error = (losses[0] - losses[1]).std() / len(text_BT) ** 0.5
    return {
        "3: rows with the previous token on top > half": previous.sum() / len(A) * 2,
        "3: farthest head's attention two or more back > half": far_TS.sum(-1).mean() * 2,
        "7: attention that two heads place apart > half": float(apart) * 2,
        "8: loss without attention 0 > without another part": ablated[0] / max(ablated[1:]),
        "10: factor of four heads' costs > of their scores": (
            costs.max() / costs.min() / (four.max() / four.min())
        ),
        "10: error of zero ablation > of zero - mean": changes["zero_error"][costly] / paired_error,
    }


@command
def main(argv: list[str]) -> int:
    """Train on each text, and print the table."""
    found, kept = [], [topics[name] for i, name in enumerate(sorted(topics)) if i % 20]
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "fewer.txt").write_text("\n".join(kept), "utf-8")
        for text in [*argv, f"{folder}/fewer.txt"]:
            path = str(Path(text).resolve())
            flags = ["--train.max_steps=600", f"--data.source={path}"]
            found.append(frame.train("", flags, iter([1337]), partial(claims, path)))
    rows = {claim: [float(row[claim]) for row in found] for claim in found[0] if claim != "seconds"}
    frame.report("lessons", [{"claim": claim, "times": rows[claim]} for claim in rows])
    return int(min(map(min, rows.values())) <= 1)


if __name__ == "__main__":
    sys.exit(main())
