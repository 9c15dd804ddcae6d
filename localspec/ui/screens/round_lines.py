"""The pictures of a round in slow motion: guesses, the check, what stays, what it cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from itertools import zip_longest

from rich.cells import cell_len
from textual.content import Content

from localspec import formats
from localspec.chat.figures.benefit import compared
from localspec.drafter_names import (
    ASSISTANT,
    CROSS_VOCABULARY,
    DFLASH,
    EAGLE3,
    LOOKUP,
    MTP,
    kind_of,
)
from localspec.engine.record.explanation import RoundExplanation, TokenProbabilities
from localspec.safe_text import unbroken
from localspec.ui.panel.drawing import ACCEPTED, BONUS, FAINT, RECOVERED, UNDRAFTED, Piece, bar
from localspec.ui.widgets import HEAD, KEY, MUTED

_GUESS, _WRONG, _DROPPED = "?", "✗", "·"
_BAR: Piece = ("│", FAINT)
_WORD = 16
_BARS_FROM = 60  # cells: from this width on both models' bars stand side by side
_DRAFTERS = {
    LOOKUP: "copied from where the same tokens stood before, without any probabilities",
    MTP: "guessed by a head that continues the target (MTP), from what the target computed itself",
    CROSS_VOCABULARY: "guessed by a small model with other tokens than the target's",
    EAGLE3: "guessed by a head (EAGLE-3), from what the target computed itself",
    ASSISTANT: "guessed by an assistant (Gemma 4), from what the target computed and holds",
    DFLASH: "guessed at once by a head (DFlash), from what the target computed itself",
}
_RULES = {
    "match": "the target chooses for itself, and a guess stays where it is the same",
    "coupled": "both draw with the same random numbers, and a guess stays where it is the same",
    "token": "each guess stays with the probability p/q",
    "block": "the longest beginning that passes its test stays",
    "lossy": "each guess stays with the probability p/(l q): not lossless",
    "lossy greedy": "a guess stays where it is likely enough: not lossless",
}


_WORDS = (
    (_GUESS, "a guess that is not checked yet"),
    (ACCEPTED, "accepted: the target keeps the guess"),
    (_WRONG, "not accepted; later guesses are dropped with it"),
    (RECOVERED, "recovered: the target's token in its place"),
    (BONUS, "bonus: one more token, after a draft accepted whole"),
)


class PictureKind(Enum):
    """The kinds of pictures."""

    BEFORE = auto()
    GUESS = auto()
    CHECK = auto()
    JUDGE = auto()
    END = auto()


@dataclass(frozen=True, slots=True)
class RoundPicture:
    """One step of the slow motion; `at` is the guess that it is about."""

    kind: PictureKind
    at: int = 0


def pictures(explained: RoundExplanation) -> list[RoundPicture]:
    """The steps of a round, in order."""
    n = len(explained.guesses)
    return [
        RoundPicture(PictureKind.BEFORE),
        *(RoundPicture(PictureKind.GUESS, i) for i in range(n)),
        RoundPicture(PictureKind.CHECK),
        *(RoundPicture(PictureKind.JUDGE, i) for i in range(min(n, explained.accepted + 1))),
        RoundPicture(PictureKind.END),
    ]


_STYLES = {
    _GUESS: f"italic {MUTED}",
    ACCEPTED: "bold $text-success",
    _WRONG: "strike $text-error",
    _DROPPED: f"strike {MUTED}",
    RECOVERED: "bold $text-warning",
    BONUS: "bold $text-accent",
    UNDRAFTED: "bold",
}


def cells(explained: RoundExplanation, now: RoundPicture) -> list[tuple[str, str]]:
    """The tokens of the round as they stand in a picture, each with its mark."""
    shown = len(explained.guesses)
    if now.kind in (PictureKind.BEFORE, PictureKind.GUESS):
        shown = 0 if now.kind is PictureKind.BEFORE else now.at + 1
    guesses = explained.guesses[:shown]
    found = [(visible(one.text), _mark(explained, now, i)) for i, one in enumerate(guesses)]
    if now.kind is PictureKind.END or (
        now.kind is PictureKind.JUDGE and now.at == explained.accepted
    ):
        drafted = BONUS if explained.accepted == len(explained.guesses) else RECOVERED
        mark = drafted if explained.guesses else UNDRAFTED
        after = explained.accepted + (mark is RECOVERED)
        found.insert(after, (visible(explained.token), mark))
    return found


def _mark(explained: RoundExplanation, now: RoundPicture, i: int) -> str:
    checked = now.kind is PictureKind.END or (now.kind is PictureKind.JUDGE and i <= now.at)
    if checked and i < explained.accepted:
        return ACCEPTED
    if checked and i == explained.accepted:
        return _WRONG
    over = now.kind is PictureKind.END or (
        now.kind is PictureKind.JUDGE and now.at == explained.accepted
    )
    return _DROPPED if over and i > explained.accepted else _GUESS


def visible(text: str) -> str:
    """A token in visible characters."""
    shown = unbroken(text.replace("\n", "⏎").replace("\t", "⇥"))
    return shown if shown.strip() else shown.replace(" ", "␣") or "∅"


def token_lines(tokens: Sequence[tuple[str, str]], width: int) -> list[Content]:
    """Tokens with bars between them, and below each its mark in the token's style."""
    rows: list[list[tuple[str, str]]] = []
    left = 0  # cells of the last row
    for text, mark in tokens:
        wide = cell_len(text) + 1
        if not rows or wide > left:
            rows.append([])
            left = width - 1
        rows[-1].append((text, mark))
        left -= wide
    lines = []
    for row in rows:
        said: list[Piece] = [one for text, mark in row for one in (_BAR, (text, _STYLES[mark]))]
        below = (
            (f" {mark.ljust(cell_len(text))}", _STYLES[mark].replace("strike", ""))
            for text, mark in row
        )
        lines += [Content.assemble(*said, _BAR), Content.assemble(*below)]
    return lines or [Content(""), Content("")]


def bars(side: TokenProbabilities | None, guess: str, width: int, missing: str) -> list[Content]:
    """A model's probabilities with the guess marked, or why there are none."""
    if side is None:
        return Content.styled(missing, MUTED).wrap(width)
    rows = [(one.text, one.share) for one in side.best]
    if guess and guess not in (text for text, _ in rows):
        rows[-1:] = [(guess, side.guess)]
    longest = max(4, min(_WORD, width // 2 - 5))
    room = max(4, width - longest - 10)
    lines = []
    for text, share in rows:
        mark, style = ("▸ ", "bold") if text == guess else ("  ", "")
        lines.append(
            Content.assemble(
                (mark, KEY),
                Content.styled(visible(text), style).truncate(longest, pad=True),
                " ",
                bar(share, room, "$primary"),
                (f" {formats.percent(share):>5}", style),
            )
        )
    return lines


def _beside(left: list[Content], right: list[Content], width: int) -> list[Content]:
    """Two columns, or one below the other if they do not fit."""
    if width < _BARS_FROM:
        return [*left, *right]
    pairs = zip_longest(left, right, fillvalue=Content(""))
    return [one.truncate(width // 2, pad=True) + other for one, other in pairs]


def _opinions(explained: RoundExplanation, at: int, width: int, *, looked: bool) -> list[Content]:
    """Both models' probabilities for a guess."""
    one = explained.guesses[at]
    column = width // 2 - 1 if width >= _BARS_FROM else width
    copies = "It writes text in tokens of its own: it has no probabilities for these."
    if one.drafter == LOOKUP:
        copies = "It copies: it has no probabilities."
    said = "The target has not looked yet."
    if looked:
        said = "Not looked at: a guess before it was wrong."
    left = [
        Content.styled(f"q: the {one.drafter}", HEAD),
        *bars(one.draft, one.text, column, copies),
    ]
    target = one.target if looked else None
    right = [Content.styled("p: the target", HEAD), *bars(target, one.text, column, said)]
    return _beside(left, right, width)


def _wrapped(width: int, *texts: tuple[str, str]) -> list[Content]:
    return [
        line
        for text, style in texts
        if text
        for line in Content.styled(unbroken(text), style).wrap(width)
    ]


def detail(explained: RoundExplanation, now: RoundPicture, width: int) -> list[Content]:
    """The body of a picture: bars, the test, and terms where they first occur."""
    if now.kind is PictureKind.BEFORE:
        return _beginning(explained, width)
    if now.kind is PictureKind.CHECK:
        return _check(explained, width)
    if now.kind is PictureKind.END:
        return _end(explained, width)
    one = explained.guesses[now.at]
    looked = now.kind is PictureKind.JUDGE
    head = Content.assemble(
        (f"guess {now.at + 1} of {len(explained.guesses)}: ", MUTED), (visible(one.text), "bold")
    )
    lines = [head, *_opinions(explained, now.at, width, looked=looked), Content("")]
    if not looked:
        how = f"{_DRAFTERS.get(kind_of(one.drafter), 'guessed by the small model')}.".capitalize()
        why = "A guess decides nothing: the target checks it, and the text stays the target's own."
        return lines + _wrapped(width, (how, ""), (why, MUTED))
    accepted = now.at < explained.accepted
    verdict = f"{ACCEPTED} accepted" if accepted else f"{_WRONG} not accepted"
    test, formula = one.test, ""
    if test is not None and test.formula:
        formula = f"  {test.formula}"
    lines += Content.assemble((verdict, "bold"), (formula, KEY)).wrap(width)
    meaning = (
        "Accepted: the guess stays, and cost the target no pass of its own."
        if accepted
        else f"{RECOVERED} Recovered: the target's token {visible(explained.token)} replaces it;"
        " later guesses are dropped."
    )
    return lines + _wrapped(width, (test.sentence if test else "", ""), (meaning, MUTED))


def _beginning(explained: RoundExplanation, width: int) -> list[Content]:
    made, n = explained.made, len(explained.guesses)
    if not n:
        why = "This round drafts nothing: the target writes one token by itself"
        return _wrapped(width, (f"{why}, as without drafting.", ""))
    how = f"Drafter: {made.proposed_by}."
    what = "what each model draws from, after the sampler chain"
    if explained.greedy:
        what = "what each model thinks before its best token is taken (temperature 0)"
    return _wrapped(
        width,
        (f"gamma {n}: the number of tokens guessed before the target checks them. {how}", ""),
        (f"Rule {explained.rule}: {_RULES[explained.rule]}.", ""),
        (f"The bars show {what}.", MUTED),
        (_decoded_again(explained), MUTED),
        (" ", ""),
        *((f"{mark} {word}", "") for mark, word in _WORDS),
    )


def _decoded_again(explained: RoundExplanation) -> str:
    if not explained.again:
        return ""
    if explained.same:
        return "Decoded again just now: the last digits may differ from the original ones."
    return (
        "Decoded again just now: the last digits differ, so the rule would now decide otherwise."
        " The marks show the original decision."
    )


def _check(explained: RoundExplanation, width: int) -> list[Content]:
    n = len(explained.guesses) + 1
    rows = [
        Content.assemble(
            ("  " + visible(one.text)[:_WORD].ljust(_WORD), ""),
            (f"  q {_share(one.draft)}", MUTED),
            (f"  p {_share(one.target)}", ""),
        )
        for one in explained.guesses
    ]
    said = (
        f"One pass of the target over {formats.counted(n, 'token')}: it gives its own"
        " probabilities for every place at once. Without drafting, each token needs a pass."
    )
    return [*_wrapped(width, (said, "")), Content(""), *rows]


def _share(side: TokenProbabilities | None) -> str:
    return f"{formats.percent(side.guess if side else None):>5}"


def _end(explained: RoundExplanation, width: int) -> list[Content]:
    """The last token, and what the round cost."""
    n, token = len(explained.guesses), visible(explained.token)
    words = f"One more token, {token}: the target's own."
    if n and explained.accepted == n:
        words = (
            f"{BONUS} Bonus: all guesses stay, and the same pass yields one more token, {token}."
        )
    elif n:
        words = f"{RECOVERED} Recovered: {token} stands in place of the first wrong guess."
    said = "It was not drawn."
    left = "p: the target" if explained.accepted == n or explained.greedy else "what is left of p"
    lines = [
        *_wrapped(width, (words, "")),
        Content.styled(left, HEAD),
        *bars(explained.last, explained.token, min(width, 60), said)[:4],
        Content(""),
    ]
    return lines + _cost(explained, width)


def _cost(explained: RoundExplanation, width: int) -> list[Content]:
    made, tokens = explained.made, explained.accepted + 1
    total, baseline = made.total_s, explained.baseline_s * tokens
    most = max(total, baseline) or 1.0
    room = max(4, min(30, width - 56))
    ms = formats.milliseconds
    how = "checking" if explained.guesses else "writing"
    rows = [
        ("this round", total, f"{ms(made.draft_s)} drafting, {ms(made.verify_s)} {how}"),
        (
            "no draft",
            baseline,
            f"{tokens} pass{'es' if tokens > 1 else ''} of {ms(explained.baseline_s)}",
        ),
    ]
    lines = [
        Content.assemble(
            (f"{name:<11}", MUTED),
            bar(value / most, room, "$primary"),
            (f" {ms(value)} ms", "bold"),
            (f"  {told}", MUTED),
        )
        for name, value, told in rows
    ]
    gain = ""
    if explained.guesses and total and baseline:
        gain = f", {compared(baseline / total)}"
    count = f"{formats.counted(tokens, 'token')} in one pass{gain} (this round alone)"
    return [*lines, *_wrapped(width, (count, "bold"))]


def round_lines(
    explained: RoundExplanation, now: RoundPicture, width: int, height: int
) -> list[Content]:
    """A picture of a round in `width` cells by `height` lines."""
    text = unbroken(explained.before.replace("\n", "⏎"))
    before = Content.styled(text, MUTED).wrap(max(1, width))
    strip = token_lines(cells(explained, now), width)
    lines = [*before[-2:], *strip, Content("")]
    room = height - len(lines)
    lines += detail(explained, now, width)[: max(0, room)]
    return [line.truncate(width, ellipsis=True) for line in lines[:height]]
