"""Small stories in plain English, which the playground trains on until a text is pasted. Python
writes them into the page."""

import random

GIRLS = ["Anna", "Emma", "Eva", "Lena", "Mia", "Sara"]
BOYS = ["Ben", "Leo", "Max", "Paul", "Sam", "Tom"]
PLACES = ["forest", "garden", "kitchen", "library", "park", "school", "shop", "street"]
COLORS = ["black", "blue", "green", "red", "white", "yellow"]
# Grandma gives one of HERS and Grandpa one of HIS, so a model need not avoid the first thing.
HERS = {"book": "reads", "cup": "drinks from", "hat": "puts on", "map": "looks at"}
HIS = {"ball": "plays with", "bell": "rings", "box": "opens", "drum": "plays"}
USES = HERS | HIS


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


def some_stories(count: int, seed: int = 1337) -> list[str]:
    """Return the first of an endless series of stories."""
    rng = random.Random(seed)
    return [tell(rng) for _ in range(count)]
