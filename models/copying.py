"""Tasks whose answer stands in the question, for the most part; made from the corpora by a program.

A small model that has only seen short answers does not copy: it has never had to look a word up in
what was said. These tasks need nothing else. `repeat` gives a text back word for word, `jumble`
does so with words drawn by chance (nothing but looking back helps there), `quote` finds a sentence,
`edit` renames something throughout, `fix` mends one mistake, `form` sorts what a text says into
fields.
"""

from __future__ import annotations

import json
import keyword
import random
import re
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from arithmetic import NAMES
from corpora import Message, conversations

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

PROSE = ("tinystories", "topical_chat", "dolly_subset", "gsm8k", "trivia", "sgd", "wordset")
CODE = ("python_stdlib", "python_algorithms", "mbpp", "code_snippets")
MOST_TALKS = 5_000
"""Conversations read of one source of prose, so that the largest do not crowd the others out."""
SHORTEST, LONGEST = 40, 1_200
"""Characters of a text to be copied: its question and its answer fit a context of 1,024 tokens."""
LONG_JUMBLE = 80
"""Most words of a jumble."""

SENTENCE_END = re.compile(r"(?<=[.!?])\s+")
FENCE = re.compile(r"```(\w*)\n(.*?)\n```", re.DOTALL)
WORD = re.compile(r"[A-Za-z]{3,12}")
NAME = re.compile(r"\b[a-zA-Z_]\w*\b")

REPEAT = (
    "Repeat this word for word:",
    "Repeat the following text exactly:",
    "Say this again, word for word:",
    "Copy this text without changing anything:",
    "Please write out the text below once more:",
    "Give me this back unchanged:",
)
FIRST, LAST = "Quote the first sentence of this text:", "Quote the last sentence of this text:"
BEGINS = (
    'Quote the sentence that begins with "{words}":',
    'Which sentence begins with "{words}"? Quote it.',
    'Find the sentence that starts with "{words}" and quote it:',
)
HOLDS = (
    'Quote the sentence with the words "{words}":',
    'Which sentence says "{words}"? Quote it word for word.',
)
FROM = 'Quote everything from "{words}" on:'
RENAME = (
    "Rename `{old}` to `{new}` in this code:",
    "In the code below, rename `{old}` to `{new}`.",
    "Change the name `{old}` to `{new}` everywhere:",
    "Please call `{old}` `{new}` instead and show me the whole code:",
)
SWAP = (
    'Write this text again with "{new}" instead of "{old}":',
    'Replace "{old}" by "{new}" in this text:',
    'Change every "{old}" to "{new}":',
)
FIX_CODE = (
    "Fix the bug in this code:",
    "There is a mistake in this code. Correct it:",
    "This does not run. Please mend it and show me the whole code:",
    "Find the error and write the code without it:",
)
FIX_TEXT = (
    "Correct the spelling mistake in this text:",
    "One word is spelled wrong. Write the text without the mistake:",
)
FILL = (
    "Fill in this form from the text.",
    "Fill the form with what the text says.",
    "Take the following fields from the text.",
    "Read the text and fill in the form.",
)
FIELDS: dict[str, tuple[str, ...]] = {
    "Name": ("My name is {}.", "The name is {}.", "Please write it down under {}.", "This is {}."),
    "City": ("I live in {}.", "The town is {}.", "It should go to {}."),
    "Street": ("The street is {}.", "You find us at {}.", "The address is {}."),
    "Phone": ("My phone number is {}.", "You can call me at {}.", "Call {} if need be."),
    "Email": ("Write to {}.", "My email address is {}."),
    "Date": ("It was on {}.", "The day is {}.", "Please come on {}."),
    "Time": ("It begins at {}.", "The best time is {}."),
    "Order number": ("The order number is {}.", "It is about order {}."),
    "Price": ("I paid {} for it.", "The price was {}.", "It costs {}."),
    "Item": ("I bought a {}.", "It is about a {}.", "They sent me a {}."),
    "Colour": ("The colour is {}.", "I would like it in {}."),
    "Number of people": ("There will be {} of us.", "We are {} people."),
}
FIRST_NAMES = (*NAMES, "Olga", "Peter", "Ruth", "Ivan")
COLOURS = ("red", "blue", "green", "black", "white", "yellow", "brown", "grey", "orange", "purple")
MONTHS = ("January", "March", "April", "May", "June", "July", "August", "October", "November")


@dataclass(frozen=True)
class Material:
    """What the tasks are made from."""

    texts: list[list[str]]
    """Texts as lists of sentences."""
    code: list[tuple[str, str]]
    """Language and lines of code."""
    words: list[str]
    names: list[str]
    """Names found in code."""


def read_material(folder: Path, *, held_out: bool) -> Material:
    """Collect texts, code, words and names from one part of the corpora."""
    texts: list[list[str]] = []
    for source in PROSE:
        talks = conversations(folder, source, held_out=held_out)
        for talk, _ in zip(talks, range(MOST_TALKS), strict=False):
            said = " ".join(m["content"] for m in talk if "```" not in m["content"])
            texts.append(SENTENCE_END.split(said))
    code = [
        (found[1], found[2])
        for source in CODE
        for talk in conversations(folder, source, held_out=held_out)
        for message in talk
        for found in FENCE.finditer(message["content"])
        if SHORTEST <= len(found[2]) <= LONGEST
    ]
    words = {word for text in texts for sentence in text for word in WORD.findall(sentence)}
    names = {name for _, lines in code for name in names_in(lines)}
    return Material(texts, code, sorted(words), sorted(names))


def names_in(code: str) -> list[str]:
    """Return the names in code that could be another, each as often as it occurs."""
    return [n for n in NAME.findall(code) if len(n) > 2 and not keyword.iskeyword(n)]


def passage(rng: random.Random, material: Material) -> list[str]:
    """Take some sentences that follow each other."""
    room = int(SHORTEST * (LONGEST / SHORTEST) ** rng.random())
    while True:
        text = rng.choice(material.texts)
        first = rng.randrange(len(text))
        taken: list[str] = []
        for sentence in text[first:]:
            if taken and sum(map(len, taken)) + len(sentence) > room:
                break
            taken.append(sentence)
        if SHORTEST <= sum(map(len, taken)) <= LONGEST:
            return taken


def fenced(code: str, language: str) -> str:
    """Put code into a block."""
    return f"```{language}\n{code}\n```"


def talk(rng: random.Random, ask: str, text: str, answer: str) -> list[Message]:
    """Make a conversation; now and then the text comes before the question."""
    if rng.random() < 0.15:
        question = f"{text}\n\n{ask.removesuffix('Text:').rstrip().removesuffix(':')}"
    else:
        question = f"{ask}\n\n{text}" if rng.random() < 0.8 else f"{ask}\n{text}"
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def code_word(rng: random.Random) -> str:
    """Make up a number or a code such as `KX-4821`."""
    digits = "".join(rng.choices("0123456789", k=rng.randint(2, 6)))
    letters = "".join(rng.choices("ABCDEFGHKLMNPRSTWXZ", k=rng.randint(1, 3)))
    return rng.choice((digits, f"{letters}-{digits}", f"{letters}{digits}"))


def jumble(rng: random.Random, material: Material) -> list[Message]:
    """Ask for words without sense, drawn from a few or from all."""
    count = int(4 * (LONG_JUMBLE / 4) ** rng.random())
    some = [rng.choice(material.words) for _ in range(rng.choice((count, count, 2 * count, 20)))]
    if rng.random() < 0.3:
        some += [code_word(rng) for _ in range(len(some) // 2 + 1)]
    between = rng.choice((" ", " ", ", ", "\n"))
    once = rng.random() < 0.5
    drawn = rng.sample(some, min(count, len(some))) if once else rng.choices(some, k=count)
    text = between.join(drawn)
    return talk(rng, rng.choice(REPEAT), text, text)


def repeat(rng: random.Random, material: Material) -> list[Message]:
    """Ask for a text or some code word for word."""
    if rng.random() < 0.3:
        language, code = rng.choice(material.code)
        text = fenced(code, language)
    else:
        text = " ".join(passage(rng, material))
    return talk(rng, rng.choice(REPEAT), text, text)


def quote(rng: random.Random, material: Material) -> list[Message]:
    """Ask for one sentence of a text, or for all from one on."""
    while len(sentences := passage(rng, material)) < 2:
        pass
    at = rng.randrange(len(sentences))
    words = sentences[at].split()
    kind = rng.random()
    if kind < 0.15:
        ask, answer = rng.choice(((FIRST, sentences[0]), (LAST, sentences[-1])))
    elif kind < 0.6:
        ask = rng.choice(BEGINS).format(words=" ".join(words[: rng.randint(2, 4)]))
        answer = sentences[at]
    elif kind < 0.8:
        start = rng.randrange(max(1, len(words) - 3))
        ask = rng.choice(HOLDS).format(words=" ".join(words[start : start + 3]))
        answer = sentences[at]
    else:
        ask = FROM.format(words=" ".join(words[:3]))
        answer = " ".join(sentences[at:])
    return talk(rng, ask, " ".join(sentences), answer)


def swap_words(rng: random.Random, material: Material) -> list[Message]:
    """Ask for a text with one word replaced."""
    while True:
        text = " ".join(passage(rng, material))
        if known := WORD.findall(text):
            break
    old, new = rng.choice(known), rng.choice(material.words)
    answer = re.sub(rf"\b{old}\b", new, text)
    return talk(rng, rng.choice(SWAP).format(old=old, new=new), text, answer)


def edit(rng: random.Random, material: Material) -> list[Message]:
    """Ask for code with one name changed throughout, or for a text with another word."""
    if rng.random() < 0.25:
        return swap_words(rng, material)
    while True:
        language, code = rng.choice(material.code)
        if known := names_in(code):
            break
    old = rng.choice(known)
    new = rng.choice((rng.choice(material.names), rng.choice(material.words).lower()))
    if rng.random() < 0.3:
        new = f"{new}_{rng.choice(material.words).lower()}"
    answer = re.sub(rf"\b{old}\b", new, code)
    ask = rng.choice(RENAME).format(old=old, new=new)
    return talk(rng, ask, fenced(code, language), fenced(answer, language))


def misspell(rng: random.Random, word: str) -> str:
    """Swap two letters of a word, or double or drop one."""
    at = rng.randrange(len(word) - 1)
    turned = word[:at] + word[at + 1] + word[at] + word[at + 2 :]
    return rng.choice((turned, word[:at] + word[at] + word[at:], word[:at] + word[at + 1 :]))


def broken(rng: random.Random, code: str) -> str:
    """Put one mistake into code; the same code where none fits."""
    ways: tuple[tuple[str, str], ...] = (
        (r":(?=\n)", ""),
        (r"\)(?=:?\n)", ""),
        (r"==", "="),
        (r"\breturn\b", "retrun"),
        (r"\breturn\b", "return return"),
        (r"\bdef\b", "fed"),
        (r"\bself\b", "slef"),
        (r"\bfor\b", "fro"),
        (r"\bin\b", "on"),
        (r"\bif\b", "fi"),
    )
    pattern, wrong = rng.choice(ways)
    places = list(re.finditer(pattern, code))
    if places:
        place = rng.choice(places)
        return code[: place.start()] + wrong + code[place.end() :]
    if places := [p for p in NAME.finditer(code) if len(p[0]) > 3]:
        place = rng.choice(places)
        return code[: place.start()] + misspell(rng, place[0]) + code[place.end() :]
    return code


def fix(rng: random.Random, material: Material) -> list[Message]:
    """Ask for code, or a text, without the one mistake in it."""
    if rng.random() < 0.7:
        while (wrong := broken(rng, (drawn := rng.choice(material.code))[1])) == drawn[1]:
            pass
        language, code = drawn
        ask = rng.choice(FIX_CODE)
        return talk(rng, ask, fenced(wrong, language), fenced(code, language))
    while True:
        text = " ".join(passage(rng, material))
        if places := list(WORD.finditer(text)):
            place = rng.choice(places)
            wrong = text[: place.start()] + misspell(rng, place[0]) + text[place.end() :]
            if wrong != text:
                return talk(rng, rng.choice(FIX_TEXT), wrong, text)


def value(rng: random.Random, field: str, material: Material) -> str:
    """Make up what stands in a field."""
    word = partial(rng.choice, material.words)
    family = word().capitalize()
    made: dict[str, Callable[[], str]] = {
        "Name": lambda: f"{rng.choice(FIRST_NAMES)} {family}",
        "City": lambda: family,
        "Street": lambda: f"{rng.randint(1, 299)} {family} Street",
        "Phone": lambda: (
            f"{rng.randint(100, 999)}-{rng.randint(100, 999)}-{rng.randint(0, 9999):04}"
        ),
        "Email": lambda: f"{word().lower()}@{word().lower()}.com",
        "Date": lambda: f"{rng.choice(MONTHS)} {rng.randint(1, 28)}",
        "Time": lambda: f"{rng.randint(1, 12)}:{rng.randint(0, 59):02} {rng.choice(('am', 'pm'))}",
        "Order number": lambda: code_word(rng),
        "Price": lambda: f"${rng.randint(1, 999)}.{rng.randint(0, 99):02}",
        "Item": lambda: word().lower(),
        "Colour": lambda: rng.choice(COLOURS),
        "Number of people": lambda: str(rng.randint(2, 30)),
    }
    return made[field]()


def form(rng: random.Random, material: Material) -> list[Message]:
    """Ask for the fields of a form from a text in which they stand in another order."""
    fields = rng.sample(list(FIELDS), rng.randint(2, 7))
    values = {field: value(rng, field, material) for field in fields}
    said = [rng.choice(FIELDS[field]).format(values[field]) for field in fields]
    said += passage(rng, material)[: rng.randint(0, 3)]
    rng.shuffle(said)
    asked = rng.sample(fields, rng.randint(max(1, len(fields) - 2), len(fields)))
    if rng.random() < 0.25:
        answer = json.dumps({field: values[field] for field in asked}, indent=2, ensure_ascii=False)
        blank = "as JSON: " + ", ".join(asked)
    else:
        answer = "\n".join(f"{field}: {values[field]}" for field in asked)
        blank = "\n".join(f"{field}:" for field in asked)
    return talk(rng, f"{rng.choice(FILL)}\n\n{blank}\n\nText:", " ".join(said), answer)


TASKS: dict[str, Callable[[random.Random, Material], list[Message]]] = {
    "edit": edit,
    "fix": fix,
    "quote": quote,
    "repeat": repeat,
    "form": form,
    "jumble": jumble,
}
KINDS = tuple(f"copy_{task}" for task in TASKS)
"""The names of the sources."""


def copies(folder: Path, kind: str, *, held_out: bool, count: int = 8_000) -> list[list[Message]]:
    """Make conversations of one kind, from the part of the corpora that is asked for."""
    material = read_material(folder, held_out=held_out)
    rng = random.Random(f"{kind} {held_out}")  # noqa: S311 (exercises, not secrets)
    task = TASKS[kind.removeprefix("copy_")]
    return [task(rng, material) for _ in range(count // 50 if held_out else count)]
