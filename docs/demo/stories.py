"""Small stories in plain English, whose ending follows from what they tell.

python -m docs.demo.stories > stories.txt    write them, one on each line
python -m docs.demo.stories runs/stories     count the mistakes in what a run writes

Who has the ball changes whenever someone gives it away, so a model that knows only which words
follow each other cannot end a story: it has to look back.
"""

import common.start

import re
import sys
from itertools import takewhile

import torch

from common.errors import command
from model.fast.choose import optimize_for_decoding
from model.generate import Sampling, generate
from page.playground.stories import BOYS, COLORS, GIRLS, PLACES, USES, pronoun, some_stories
from training.checkpoint import open_run

STORIES = 20_000
TRIED = 300  # stories that a run writes, and new stories that it ends
END = " In the end,"
# What the page shows first, up to a name that the story determines.
SHOWN = (
    "Anna, Ben and Mia are in the park. Grandma gives the blue book to Ben. Grandpa gives the red "
    'ball to Anna. "Who wants the red ball?" asks Anna. "I do," says Mia. Anna gives the red ball '
    'to Mia. Mia plays with the red ball in the park. "Who wants the blue book?" asks Ben. "I do," '
    "says Anna. He gives the blue book to Anna. Ben goes home. In the end, the red ball belongs to"
)
WHO, THING, PLACE = (
    f"({'|'.join(words)})"
    for words in (
        [*GIRLS, *BOYS, "She", "He"],
        [f"{color} {thing}" for color in COLORS for thing in USES],
        PLACES,
    )
)
SENTENCES = {  # as `mistake` finds them
    "are": f"{WHO}, {WHO} and {WHO} are in the {PLACE}\\.",
    "gets": f"Grandma gives the {THING} to {WHO}\\. Grandpa gives the {THING} to {WHO}\\.",
    "asks": f'"Who wants the {THING}\\?" asks {WHO}\\. "I do," says {WHO}\\.',
    "gives": f"{WHO} gives the {THING} to {WHO}\\.",
    "thanks": f'"Thank you, {WHO}," says {WHO}\\.',
    "uses": f"{WHO} ({'|'.join(USES.values())}) the {THING} in the {PLACE}\\.",
    "goes": f"{WHO} goes home\\.",
    "ends": f"In the end, the {THING} belongs to {WHO}, the {THING} belongs to {WHO}, and {WHO} is "
    "at home\\.",
}
NEXT = {  # the sentences that can come next
    "": ["are"],
    "are": ["gets"],
    "gets": ["asks"],
    "asks": ["gives"],
    "gives": ["thanks", "uses", "asks", "goes"],
    "thanks": ["uses", "asks", "goes"],
    "uses": ["asks", "goes"],
    "goes": ["ends"],
    "ends": [],
}


def mistake(story: str) -> str:
    """Return the first sentence that the story's own sentences before it contradict, or the rest of
    the story if no sentence that can come next begins it; the empty string if there is none."""
    people, owner = set[str](), dict[str, str]()
    named, offer, here, home, kind = list[str](), ("", "", ""), "", "", ""
    while story:
        found = ((each, re.match(f"{SENTENCES[each]}( |$)", story)) for each in NEXT[kind])
        kind, match = next((each for each in found if each[1]), ("", None))
        if match is None:
            return story
        words, right = [*match.groups()[:-1]], True
        for i, word in enumerate(words):
            if word in ("She", "He"):
                meant = {who for who in named if pronoun(who) == word}
                words[i] = meant.pop() if len(meant) == 1 else word
        named = [word for word in words if word in (*GIRLS, *BOYS)]
        match kind, words:
            case "are", [*_, here]:
                people, right = {*named}, len({*named}) == 3
            case "gets", [one, a, two, b]:
                owner, right = {one: a, two: b}, one != two
            case "asks", [what, who, other]:
                offer, right = (who, what, other), owner.get(what) == who != other
            case "gives", [who, what, other]:
                owner[what], right = other, (who, what, other) == offer
            case "thanks", [who, other]:
                right = (who, other) == offer[::2]
            case "uses", [who, does, what, where]:
                right = owner.get(what) == who and USES[what.split()[1]] == does and where == here
            case "goes", [home]:
                pass
            case _, [one, a, two, b, who]:
                right = owner == {one: a, two: b} and who == home
        if not right or not {*named} <= people:
            return match[0]
        story = story[match.end() :]
    return "" if kind == "ends" else "the story has no end"


@command
def main(argv: list[str]) -> int:
    """Write the stories, or count the mistakes of a run."""
    stories = some_stories(STORIES)
    if not argv:
        print(*stories, sep="\n")
        return 0
    saved, generator = open_run(argv[0]), torch.Generator().manual_seed(1337)
    new = some_stories(STORIES + TRIED)[STORIES:]
    (model, _), tokenizer = optimize_for_decoding(saved.model()), saved.tokenizer
    newline = saved.start_token

    def go_on(text: str) -> str:
        """Return the story that begins with this text."""
        prompt = torch.tensor([[newline, *tokenizer.encode(text).tolist()]])
        tokens = map(int, generate(model, prompt, 200, Sampling(), generator))
        return text + tokenizer.decode(takewhile(lambda token: token != newline, tokens))

    told = [go_on("") for _ in range(TRIED)]
    ended = [go_on(story.partition(END)[0] + END) for story in new]
    for story in told[:3]:
        print(f"{story}\n    mistake: {mistake(story) or 'none'}\n")
    right, ends = (sum(not mistake(story) for story in each) for each in (told, ended))
    copies = len({*told} & {*stories})
    print(
        f"of {TRIED} stories, {right} have no mistake, and {copies} are in the training text\n"
        f"of {TRIED} new stories, {ends} get the right end"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
