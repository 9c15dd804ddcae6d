"""Short sums with their answers, written by this program (public domain, CC0)."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from corpora import Message

QUESTIONS = (
    "What is {sum}?",
    "What's {sum}?",
    "How much is {sum}?",
    "Calculate {sum}.",
    "Please work out {sum}.",
    "{sum}?",
    "{sum} =",
    "Can you tell me what {sum} is?",
)
STORIES = (
    ("{name} has {a} {thing} and gets {b} more. How many {thing} does {name} have?", "+"),
    ("{name} has {a} {thing} and gives away {b}. How many {thing} are left?", "-"),
    ("There are {a} boxes with {b} {thing} in each. How many {thing} are there?", "*"),
)
NAMES = ("Anna", "Ben", "Carla", "David", "Emma", "Tom", "Lily", "Sam", "Nora", "Max")
THINGS = ("apples", "books", "marbles", "cookies", "pencils", "stickers", "oranges", "cards")


def operands(rng: random.Random, sign: str) -> tuple[int, int]:
    """Draw two numbers that a person would put into a sum; smaller ones more often."""
    if sign == "*":
        return rng.randint(2, 12), rng.randint(2, 12)
    top = rng.choice((10, 20, 20, 50, 100, 100))
    a, b = rng.randint(1, top), rng.randint(1, top)
    return (max(a, b), min(a, b)) if sign == "-" else (a, b)


def result(a: int, b: int, sign: str) -> int:
    """Work the sum out."""
    return {"+": a + b, "-": a - b, "*": a * b}[sign]


def sums(*, seed: int, count: int = 20_000) -> list[list[Message]]:
    """Make `count` conversations of one question and its answer."""
    rng = random.Random(seed)  # noqa: S311 (exercises, not secrets)
    made = []
    for _ in range(count if seed == 0 else count // 50):
        if rng.random() < 0.7:
            sign = rng.choice("++-*")
            a, b = operands(rng, sign)
            term = f"{a} {sign} {b}"
            question = rng.choice(QUESTIONS).format(sum=term)
            answer = f"{term} = {result(a, b, sign)}."
        else:
            text, sign = rng.choice(STORIES)
            a, b = operands(rng, sign)
            thing = rng.choice(THINGS)
            question = text.format(name=rng.choice(NAMES), a=a, b=b, thing=thing)
            value = result(a, b, sign)
            answer = f"{a} {sign} {b} = {value} {thing}.\nThe answer is {value}."
        made.append(
            [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
        )
    return made
