"""The stories of a demo: what they tell determines how they end."""

import os
import random
import re
import subprocess
import sys

from docs.demo.stories import END, SHOWN, mistake
from page.playground.stories import BOYS, COLORS, GIRLS, PLACES, USES, tell
from tests.conftest import ROOT

PRINT = """import random
from page.playground.stories import tell
rng = random.Random(5)
for _ in range(300): print(tell(rng))"""
SENTENCE = r'[A-Z][^.?!"]*\.|"[A-Z][^.?!"]*[?,]" (asks|says) [A-Z][a-z]+\.'


def make(count: int) -> list[str]:
    rng = random.Random(5)
    return [tell(rng) for _ in range(count)]


def test_stories_do_not_depend_on_the_process() -> None:
    command, environment = [sys.executable, "-c", PRINT], os.environ | {"PYTHONHASHSEED": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.stdout.splitlines() == make(300)


def test_stories_differ_and_have_no_mistake() -> None:
    stories = make(1000)
    assert len({*stories}) == 1000 and not any(map(mistake, stories))
    rest = " Mia, the blue book belongs to Anna, and Ben is at home."
    assert not mistake(SHOWN + rest) and mistake(SHOWN + rest.replace("Mia", "Anna"))


def test_sentences_are_well_formed() -> None:
    for story in make(300):
        assert re.fullmatch(f"({SENTENCE})( ({SENTENCE}))*", story)


def test_things_belong_to_who_was_last_said_to_have_them() -> None:
    for story in make(300):
        told, _, end = story.partition(END)
        owner = dict(re.findall(r"gives the (\w+ \w+) to (\w+)\.", told))  # the last one counts
        assert dict(re.findall(r"the (\w+ \w+) belongs to (\w+)", end)) == owner


def test_another_word_is_a_mistake() -> None:
    """After the first sentence, which can name anyone."""
    for story in make(50):
        for words in ([*GIRLS, *BOYS], PLACES, COLORS, [*USES], [*USES.values()]):
            for found in re.finditer("|".join(rf"\b{word}\b" for word in words), story):
                for other in {*words} - {found[0]} if found.start() > story.index(".") else ():
                    assert mistake(story[: found.start()] + other + story[found.end() :])


def test_strangers_and_a_thing_that_is_given_twice_are_mistakes() -> None:
    for story in make(50):
        first, dot, rest = story.partition(".")
        for group in (GIRLS, BOYS):
            stranger = next(name for name in group if name not in first)
            for name in (name for name in group if name in first and name in rest):
                assert mistake(first + dot + rest.replace(name, stranger))
    assert mistake(SHOWN.replace("blue book", "red ball")).startswith("Grandma")
