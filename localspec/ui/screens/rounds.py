"""One round of an answer in slow motion: guesses, the check, what stays, what it cost."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import TYPE_CHECKING, ClassVar

from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

from localspec import formats
from localspec.engine.stats import DFLASH, EAGLE3, LOOKUP, MTP, TRANSLATED
from localspec.safe_text import one_line, unbroken
from localspec.ui.bases import HEAD, KEY, MUTED, key_hint
from localspec.ui.lines import as_many
from localspec.ui.panel.drawing import ACCEPTED, BONUS, FAINT, RECOVERED, bar, two_sides

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from textual.app import ComposeResult
    from textual.binding import BindingType
    from textual.timer import Timer

    from localspec.engine.inside import Guessed, Inside, Opinion
    from localspec.ui.panel.drawing import Piece

_STEP_S = 1.2
_GUESS, _WRONG, _DROPPED = "?", "✗", "·"
_WORD = 16
_BARS_FROM = 60  # cells, from which both models' bars stand side by side
_DRAFTERS = {
    LOOKUP: "copied from where the same tokens stood before, without any probabilities",
    MTP: "guessed by a head inside the target (MTP), from what the target computed itself",
    TRANSLATED: "guessed by a small model with other tokens than the target's",
    EAGLE3: "guessed by a head (EAGLE-3), from what the target computed itself",
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
    (_GUESS, "a guess that is not judged yet"),
    (ACCEPTED, "accepted: the target keeps the guess"),
    (_WRONG, "not accepted; guesses behind it are dropped with it"),
    (RECOVERED, "recovered: the target's token in its place"),
    (BONUS, "bonus: one more token, after a draft accepted whole"),
)


class Kind(Enum):
    """What a picture shows."""

    BEFORE = auto()
    GUESS = auto()
    CHECK = auto()
    JUDGE = auto()
    END = auto()


@dataclass(frozen=True, slots=True)
class Picture:
    """One step of the slow motion; `at` is the guess that it is about."""

    kind: Kind
    at: int = 0


def pictures(inside: Inside) -> list[Picture]:
    """The steps of a round, in order."""
    n = len(inside.guesses)
    return [
        Picture(Kind.BEFORE),
        *(Picture(Kind.GUESS, i) for i in range(n)),
        Picture(Kind.CHECK),
        *(Picture(Kind.JUDGE, i) for i in range(min(n, inside.accepted + 1))),
        Picture(Kind.END),
    ]


@dataclass(slots=True)
class Cell:
    """A token in the line of tokens, with a mark below it that says the same as its style."""

    text: str
    mark: str = " "
    style: str = ""


_STYLES = {
    _GUESS: f"italic {MUTED}",
    ACCEPTED: "bold $text-success",
    _WRONG: "strike $text-error",
    _DROPPED: f"strike {MUTED}",
    RECOVERED: "bold $text-warning",
    BONUS: "bold $text-accent",
}


def cells(inside: Inside, now: Picture) -> list[Cell]:
    """The tokens of the round as they stand in a picture."""
    shown = len(inside.guesses)
    if now.kind in (Kind.BEFORE, Kind.GUESS):
        shown = 0 if now.kind is Kind.BEFORE else now.at + 1
    found = [Cell(one.text, _mark(inside, now, i)) for i, one in enumerate(inside.guesses[:shown])]
    if now.kind is Kind.END or (now.kind is Kind.JUDGE and now.at == inside.accepted):
        mark = RECOVERED if inside.accepted < len(inside.guesses) else BONUS
        after = inside.accepted + (mark is RECOVERED)
        found.insert(after, Cell(inside.token, mark))
    return [replace(one, text=visible(one.text), style=_STYLES[one.mark]) for one in found]


def _mark(inside: Inside, now: Picture, i: int) -> str:
    judged = now.kind is Kind.END or (now.kind is Kind.JUDGE and i <= now.at)
    if judged and i < inside.accepted:
        return ACCEPTED
    if judged and i == inside.accepted:
        return _WRONG
    over = now.kind is Kind.END or (now.kind is Kind.JUDGE and now.at == inside.accepted)
    return _DROPPED if over and i > inside.accepted else _GUESS


def visible(text: str) -> str:
    """A token as it can be seen, whatever it is made of."""
    shown = unbroken(text.replace("\n", "⏎").replace("\t", "⇥"))
    return shown if shown.strip() else shown.replace(" ", "␣") or "∅"


def token_lines(tokens: Sequence[Cell], width: int) -> list[Content]:
    """Tokens with bars between them, and below each its mark."""
    if not tokens:
        return [Content(""), Content("")]
    lines: list[Content] = []
    row: list[Cell] = []
    for one in [*tokens, None]:
        wide = sum(Content(each.text).cell_length + 1 for each in row)
        if one is None or (row and wide + Content(one.text).cell_length + 2 > width):
            pieces: list[Piece] = [
                piece for each in row for piece in (("│", FAINT), (each.text, each.style))
            ]
            marks: list[Piece] = [
                (
                    f" {each.mark.ljust(Content(each.text).cell_length)}",
                    each.style.replace("strike", ""),
                )
                for each in row
            ]
            lines += [Content.assemble(*pieces, ("│", FAINT)), Content.assemble(*marks)]
            row = []
        if one is not None:
            row.append(one)
    return lines


def bars(side: Opinion | None, guess: str, width: int, missing: str) -> list[Content]:
    """What a model thought, the guess marked; why there is nothing to show."""
    if side is None:
        return Content.styled(missing, MUTED).wrap(width)
    rows = [(one.text, one.share) for one in side.best]
    if guess and guess not in (text for text, _ in rows):
        rows[-1:] = [(guess, side.guess)]
    longest = max(4, min(_WORD, width // 2 - 5))
    room = max(4, width - longest - 10)
    lines = []
    for text, share in rows:
        chosen = text == guess
        word = visible(text)[:longest]
        pad = " " * (longest - Content(word).cell_length)
        style = "bold" if chosen else ""
        lines.append(
            Content.assemble(
                ("▸ " if chosen else "  ", KEY),
                (word + pad, style),
                " ",
                bar(share, room, "$primary"),
                (f" {formats.percent(share):>5}", style),
            )
        )
    return lines


def _beside(left: list[Content], right: list[Content], width: int) -> list[Content]:
    """Two columns, or one below the other where there is no room."""
    if width < _BARS_FROM:
        return [*left, *right]
    half = width // 2
    height = max(len(left), len(right))
    left += [Content("")] * (height - len(left))
    right += [Content("")] * (height - len(right))
    return [
        Content.assemble(one.pad_right(half - one.cell_length), other)
        for one, other in zip(left, right, strict=True)
    ]


def _opinions(inside: Inside, at: int, width: int, *, looked: bool) -> list[Content]:
    """What both models thought of a guess."""
    one = inside.guesses[at]
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


def detail(inside: Inside, now: Picture, width: int) -> list[Content]:
    """What a picture is about: bars, the test, words where they are first needed."""
    if now.kind is Kind.BEFORE:
        return _beginning(inside, width)
    if now.kind is Kind.CHECK:
        return _check(inside, width)
    if now.kind is Kind.END:
        return _end(inside, width)
    one = inside.guesses[now.at]
    looked = now.kind is Kind.JUDGE
    head = Content.assemble(
        (f"guess {now.at + 1} of {len(inside.guesses)}: ", MUTED), (visible(one.text), "bold")
    )
    lines = [head, *_opinions(inside, now.at, width, looked=looked), Content("")]
    if not looked:
        return lines + _wrapped(width, (_how_guessed(one), ""), (_BEFORE_CHOICE, MUTED))
    accepted = now.at < inside.accepted
    verdict = f"{ACCEPTED} accepted" if accepted else f"{_WRONG} not accepted"
    test, formula = one.test, ""
    if test is not None and test.formula:
        formula = f"  {test.formula}"
    lines += Content.assemble((verdict, "bold"), (formula, KEY)).wrap(width)
    meaning = (
        "Accepted: the guess stays, and cost the target no pass of its own."
        if accepted
        else f"{RECOVERED} Recovered: {visible(inside.token)} is the target's token in its place;"
        " guesses behind it are dropped."
    )
    return lines + _wrapped(width, (test.sentence if test else "", ""), (meaning, MUTED))


_BEFORE_CHOICE = (
    "A guess decides nothing: the target checks it, and the text stays the target's own."
)


def _how_guessed(one: Guessed) -> str:
    return f"{_DRAFTERS.get(one.drafter, 'guessed by the small model')}.".capitalize()


def _beginning(inside: Inside, width: int) -> list[Content]:
    made, n = inside.made, len(inside.guesses)
    if not n:
        why = "This round drafts nothing: the target writes one token by itself"
        return _wrapped(width, (f"{why}, as plain decoding does.", ""))
    how = f"Drafter: {made.proposed_by}."
    what = "what each model draws from, after the sampler chain"
    if inside.greedy:
        what = "what each model thinks before its best token is taken (temperature 0)"
    return _wrapped(
        width,
        (f"gamma {n}: so many tokens are guessed before the target looks. {how}", ""),
        (f"Rule {inside.rule}: {_RULES[inside.rule]}.", ""),
        (f"The bars show {what}.", MUTED),
        (_decoded_again(inside), MUTED),
        (" ", ""),
        *((f"{mark} {word}", "") for mark, word in _WORDS),
    )


def _decoded_again(inside: Inside) -> str:
    if not inside.again:
        return ""
    if inside.same:
        return "Decoded again just now: the last digits may differ from those of then."
    return (
        "Decoded again just now: the last digits differ, and the rule would decide otherwise by"
        " them. What is marked is what was decided then."
    )


def _check(inside: Inside, width: int) -> list[Content]:
    n = len(inside.guesses) + 1
    rows = [
        Content.assemble(
            ("  " + visible(one.text)[:_WORD].ljust(_WORD), ""),
            (f"  q {_share(one.draft)}", MUTED),
            (f"  p {_share(one.target)}", ""),
        )
        for one in inside.guesses
    ]
    said = (
        f"One pass of the target over {n} token{'s' if n > 1 else ''}: it gives its own"
        " probabilities for every place at once, where plain decoding would need a pass for each."
    )
    return [*_wrapped(width, (said, "")), Content(""), *rows]


def _share(side: Opinion | None) -> str:
    return f"{formats.percent(side.guess if side else None):>5}"


def _end(inside: Inside, width: int) -> list[Content]:
    """The last token, and what it all cost."""
    n, token = len(inside.guesses), visible(inside.token)
    words = f"One more token, {token}: the target's own."
    if n and inside.accepted == n:
        words = (
            f"{BONUS} Bonus: all guesses stay, and the same pass yields one more token, {token}."
        )
    elif n:
        words = f"{RECOVERED} Recovered: {token} stands in place of the first wrong guess."
    said = "It was not drawn."
    left = "p: the target" if inside.accepted == n or inside.greedy else "what is left of p"
    lines = [
        *_wrapped(width, (words, "")),
        Content.styled(left, HEAD),
        *bars(inside.last, inside.token, min(width, 60), said)[:4],
        Content(""),
    ]
    return lines + _cost(inside, width)


def _cost(inside: Inside, width: int) -> list[Content]:
    made, tokens = inside.made, inside.accepted + 1
    total, plain = made.total_s, inside.plain_s * tokens
    most = max(total, plain) or 1.0
    room = max(4, min(30, width - 56))
    ms = formats.milliseconds
    rows = [
        ("this round", total, f"{ms(made.draft_s)} drafting, {ms(made.verify_s)} checking"),
        ("plain", plain, f"{tokens} pass{'es' if tokens > 1 else ''} of {ms(inside.plain_s)}"),
    ]
    lines = [
        Content.assemble(
            (f"{name:<11}", MUTED),
            bar(value / most, room, "$primary"),
            (f" {ms(value)} ms", "bold"),
            (f"  {how}", MUTED),
        )
        for name, value, how in rows
    ]
    gain = f", {plain / total:.1f}× as fast as plain decoding" if total and plain else ""
    count = f"{tokens} token{'s' if tokens > 1 else ''} in one pass{gain} (this round alone)"
    return [*lines, *_wrapped(width, (count, "bold"))]


def round_lines(inside: Inside, now: Picture, width: int, height: int) -> list[Content]:
    """A picture of a round in `width` cells by `height` lines."""
    before = Content.styled(unbroken(inside.before.replace("\n", "⏎")), MUTED).wrap(max(1, width))
    strip = token_lines(cells(inside, now), width)
    lines = [*before[-2:], *strip, Content("")]
    room = height - len(lines)
    lines += detail(inside, now, width)[: max(0, room)]
    return [line.truncate(width, ellipsis=True) for line in lines[:height]]


@dataclass(slots=True)
class Player:
    """Which picture of which round is shown.

    Attributes:
        inside: the round; None while there is none.
        at: the number of the picture.
        playing: whether the next one follows by itself.
        kept: the rounds that have been told, by number.
        waits: why there is nothing new; empty where nothing is waited for.
    """

    inside: Inside | None = None
    at: int = 0
    playing: bool = True
    kept: dict[int, Inside] = field(default_factory=dict)
    waits: str = ""

    def show(self, inside: Inside, *, at_end: bool = False) -> None:
        """Begin with a round, or with its end."""
        self.kept[inside.number] = self.inside = inside
        self.waits = ""
        self.at = len(pictures(inside)) - 1 if at_end else 0

    def step(self, by: int) -> bool:
        """Go to another picture; False where the round has none there."""
        if self.inside is None or not 0 <= self.at + by < len(pictures(self.inside)):
            return False
        self.at += by
        return True


class RoundScreen(ModalScreen[None]):
    """Plays rounds of one answer.

    Args:
        ask: has a round told by `hear`, 0 for the next one; returns what withdraws that.
        growing: whether the answer is still being written.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        ("escape,q,Q", "dismiss", "Close"),
        ("space", "pause", "Pause"),
        ("right", "step", "Step"),
        ("left", "back", "Back"),
        ("n,N,down", "next_round", "Next round"),
        ("p,P,up", "previous_round", "Previous round"),
    ]

    def __init__(
        self, ask: Callable[[int], Callable[[], None]], growing: Callable[[], bool]
    ) -> None:
        super().__init__()
        self.player = Player()
        self._ask = ask
        self._growing = growing
        self._withdraw: Callable[[], None] = lambda: None
        self._at_end = False
        self._timer: Timer | None = None
        self._text = Static("", markup=False, id="round-text")
        self._keys = Static("", markup=False, id="round-keys")

    def compose(self) -> ComposeResult:
        """The picture, the keys below it."""
        with Vertical(id="round") as box:
            box.border_title = "inside a round"
            yield self._text
            yield self._keys

    def on_mount(self) -> None:
        """Ask for the newest round."""
        self._timer = self.set_interval(_STEP_S, self._tick)
        self._want(0)

    def on_unmount(self) -> None:
        """However it was closed, nothing is decoded for it any more."""
        self._withdraw()

    def on_resize(self) -> None:
        """Lay out for the new size."""
        self.call_after_refresh(self.redraw)

    def hear(self, inside: Inside | None, problem: str) -> None:
        """Take what was told of a round, or why it cannot be."""
        self._withdraw = lambda: None
        if inside is not None:
            self.player.show(inside, at_end=self._at_end)
        elif problem:
            self.player.waits = problem
        self.redraw()

    def _want(self, number: int, *, at_end: bool = False) -> None:
        """Show a round: at once where it was told before."""
        self._withdraw()
        self._at_end = at_end
        if (known := self.player.kept.get(number)) is not None:
            self.player.show(known, at_end=at_end)
        else:
            waits = "decoding a round again …"
            if self._growing():
                waits = "this round is decoded again once the answer has ended …"
                if not number:
                    waits = "waiting for the next round with a draft …"
            self.player.waits = waits
            self._withdraw = self._ask(number)
        self.redraw()

    def _tick(self) -> None:
        if self.player.playing and not self.player.waits and self.player.inside is not None:
            self._step(1)

    def action_step(self) -> None:
        """The next picture, over the end into the next round."""
        self._step(1)

    def action_back(self) -> None:
        """The picture before, over the beginning into the round before."""
        self._step(-1)

    def action_next_round(self) -> None:
        """The next round with a draft; while the answer runs the next that is made."""
        self._turn(1)

    def action_previous_round(self) -> None:
        """The round with a draft before."""
        self._turn(-1)

    def _step(self, by: int) -> None:
        if self.player.step(by):
            self.redraw()
        elif not self.player.waits:
            self._turn(by, at_end=by < 0)

    def _turn(self, by: int, *, at_end: bool = False) -> None:
        inside = self.player.inside
        if inside is None:
            return
        number = inside.later if by > 0 else inside.earlier
        if by > 0 and self._growing():
            self._want(0)
        elif number:
            self._want(number, at_end=at_end)
        else:
            self.player.playing = False
            self.redraw()

    def action_pause(self) -> None:
        """Stand still, or go on."""
        self.player.playing = not self.player.playing
        self.redraw()

    def redraw(self) -> None:
        """Show the picture as it is now."""
        width, height = self._text.size
        if width <= 0:
            return
        inside, said = self.player.inside, self.player.waits
        lines = [] if not said else Content.styled(one_line(said, 300), KEY).wrap(width)
        if inside is not None:
            count = f"round {inside.number} of {inside.rounds}, {self._drafted(inside)}"
            steps = f"{self.player.at + 1}/{len(pictures(inside))}"
            lines.insert(0, two_sides((count, "bold"), (steps, MUTED), width))
            now = pictures(inside)[self.player.at]
            lines += round_lines(inside, now, width, height - len(lines))
        self._text.update(Content("\n").join(lines[:height]))
        self._keys.update(as_many(self._hints(), self._keys.size.width))

    def _drafted(self, inside: Inside) -> str:
        return (
            f"drafter {inside.made.proposed_by}, rule {inside.rule}" if inside.guesses else "plain"
        )

    def _hints(self) -> list[Content]:
        pause = "pause" if self.player.playing else "play"
        return [
            key_hint("Space", pause, "screen.pause"),
            key_hint("→", "step", "screen.step"),
            key_hint("←", "back", "screen.back"),
            key_hint("N", "next round", "screen.next_round"),
            key_hint("P", "previous", "screen.previous_round"),
            key_hint("Esc", "close", "screen.dismiss"),
        ]
