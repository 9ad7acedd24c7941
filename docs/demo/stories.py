"""Small stories in plain English, whose ending follows from what they tell.

python -m docs.demo.stories > stories.txt    write them, one on each line
python -m docs.demo.stories runs/stories     count the mistakes in what a run writes

Who has the ball changes whenever someone gives it away, so a model that knows only which words
follow each other cannot end a story: it has to look back.
"""

import common.start

import random
import re
import sys
from itertools import takewhile

import torch

from common.errors import command
from model.fast.choose import optimize_for_decoding
from model.generate import Sampling, generate
from training.checkpoint import open_run

GIRLS = ["Anna", "Emma", "Eva", "Lena", "Mia", "Sara"]
BOYS = ["Ben", "Leo", "Max", "Paul", "Sam", "Tom"]
PLACES = ["forest", "garden", "kitchen", "library", "park", "school", "shop", "street"]
COLORS = ["black", "blue", "green", "red", "white", "yellow"]
# Grandma gives one of HERS and Grandpa one of HIS, so a model need not avoid the first thing.
HERS = {"book": "reads", "cup": "drinks from", "hat": "puts on", "map": "looks at"}
HIS = {"ball": "plays with", "bell": "rings", "box": "opens", "drum": "plays"}
USES = HERS | HIS
STORIES, SEED = 20_000, 1337
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


def pronoun(who: str) -> str:
    return "She" if who in GIRLS else "He"


def tell(rng: random.Random) -> str:
    """Return a story."""
    people = rng.sample([*GIRLS, *BOYS], 3)
    nouns = rng.choice([*HERS]), rng.choice([*HIS])
    things = [f"{color} {noun}" for color, noun in zip(rng.sample(COLORS, 2), nouns, strict=True)]
    here = rng.choice(PLACES)
    owner = dict(zip(things, rng.sample(people, 2), strict=True))
    told = [f"{people[0]}, {people[1]} and {people[2]} are in the {here}."]
    for giver, (thing, who) in zip(("Grandma", "Grandpa"), owner.items(), strict=True):
        told.append(f"{giver} gives the {thing} to {who}.")
    given = ""  # the thing that was given last; nobody offers it
    for _ in range(rng.choice((2, 3))):
        thing = rng.choice([thing for thing in things if thing != given])
        has = owner[thing]
        who = rng.choice([each for each in people if each != has])
        # A pronoun, if it can mean only one of the two people in the last sentence.
        clear = pronoun(has) != pronoun(who)
        told.append(f'"Who wants the {thing}?" asks {has}. "I do," says {who}.')
        told.append(f"{pronoun(has) if clear else has} gives the {thing} to {who}.")
        owner[thing], given = who, thing
        if rng.random() < 0.5:
            told.append(f'"Thank you, {has}," says {who}.')
        if rng.random() < 0.5:
            use = USES[thing.split()[1]]
            told.append(f"{pronoun(who) if clear else who} {use} the {thing} in the {here}.")
    who = rng.choice(people)
    told.append(f"{who} goes home.")
    (one, a), (two, b) = rng.sample([*owner.items()], 2)
    told.append(
        f"In the end, the {one} belongs to {a}, the {two} belongs to {b}, and {who} is at home."
    )
    return " ".join(told)


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
    rng = random.Random(SEED)
    stories = [tell(rng) for _ in range(STORIES)]
    if not argv:
        print(*stories, sep="\n")
        return 0
    saved, generator = open_run(argv[0]), torch.Generator().manual_seed(SEED)
    (model, _), tokenizer = optimize_for_decoding(saved.model()), saved.tokenizer
    newline = saved.start_token

    def go_on(text: str) -> str:
        """Return the story that begins with this text."""
        prompt = torch.tensor([[newline, *tokenizer.encode(text).tolist()]])
        tokens = map(int, generate(model, prompt, 200, Sampling(), generator))
        return text + tokenizer.decode(takewhile(lambda token: token != newline, tokens))

    told = [go_on("") for _ in range(TRIED)]
    ended = [go_on(tell(rng).partition(END)[0] + END) for _ in range(TRIED)]
    for story in told[:3]:
        print(f"{story}\n    mistake: {mistake(story) or 'none'}\n")
    right, new = (sum(not mistake(story) for story in each) for each in (told, ended))
    copies = len({*told} & {*stories})
    print(
        f"of {TRIED} stories, {right} have no mistake, and {copies} are in the training text\n"
        f"of {TRIED} new stories, {new} get the right end"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
