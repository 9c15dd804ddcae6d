"""The view inside a round: its pictures, its keys, and the real rounds of running answers."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pytest
from msgspec.structs import replace
from textual.content import Content

from localspec.drafter_names import LOOKUP
from localspec.engine.record.explanation import (
    Candidate,
    GuessedToken,
    RoundExplanation,
    TokenProbabilities,
    TokenVerdict,
)
from localspec.engine.record.stats import Round
from localspec.loading.load_request import LoadRequest
from localspec.process.engine_client import EngineClient
from localspec.ui.chat_app import ChatApp
from localspec.ui.screens.round_lines import (
    PictureKind,
    RoundPicture,
    bars,
    cells,
    detail,
    pictures,
    round_lines,
    token_lines,
    visible,
)
from localspec.ui.screens.rounds import RoundPlayer, RoundScreen
from tests.support import ENDLESS
from tests.support.chat_pilot import Chat, chatting
from tests.support.scripted_session import Gate

MADE = Round((1, 2, 3), 3, 3, 2, 0.002, 0.006, 0.009, drafter="draft")


def opinion(guess: float, *best: tuple[str, float]) -> TokenProbabilities:
    return TokenProbabilities(guess, tuple(Candidate(*one) for one in best))


def guessed(text: str, accepted: bool | None, drafter: str = "draft") -> GuessedToken:
    test = None if accepted is None else TokenVerdict(accepted, "So it is.", "p/q = 0.5", 0.5, 0.25)
    side = opinion(0.25, (text, 0.25), (" other", 0.2))
    looked = None if accepted is None else side
    return GuessedToken(text, drafter, side if drafter == "draft" else None, looked, test)


def explained(accepted: int = 1, *, drafter: str = "draft", **more: Any) -> RoundExplanation:
    """A round of three guesses, of which `accepted` stay."""
    judged = [True] * accepted + [False] * (accepted < 3) + [None] * 2
    words = (" the", " dog", " ran")
    guesses = tuple(guessed(*one, drafter) for one in zip(words, judged, strict=False))
    about = {
        "number": 5, "rounds": 9, "earlier": 3, "later": 7, "before": "And so\n", "rule": "token",
        "greedy": False, "guesses": guesses, "accepted": accepted, "token": " cat",
        "last": opinion(0.5, (" cat", 0.5)), "made": MADE, "baseline_s": 0.007,
    }  # fmt: skip
    return RoundExplanation(**(about | more))


def said(now: RoundPicture, one: RoundExplanation, width: int = 76, height: int = 24) -> str:
    lines = round_lines(one, now, width, height)
    assert len(lines) <= height
    assert all(line.cell_length <= width for line in lines)
    return "\n".join(line.plain for line in lines)


def test_a_round_is_guessed_checked_judged_and_counted() -> None:
    kinds = [
        PictureKind.BEFORE,
        *[PictureKind.GUESS] * 3,
        PictureKind.CHECK,
        *[PictureKind.JUDGE] * 2,
        PictureKind.END,
    ]
    assert [one.kind for one in pictures(explained())] == kinds
    assert len(pictures(explained(3))) == len(kinds) + 1
    assert [one.kind for one in pictures(explained(0, guesses=()))] == [
        PictureKind.BEFORE,
        PictureKind.CHECK,
        PictureKind.END,
    ]


def test_marks_say_what_styles_say() -> None:
    def marks(now: RoundPicture, accepted: int = 1) -> str:
        return "".join(mark for _, mark in cells(explained(accepted), now))

    assert marks(RoundPicture(PictureKind.BEFORE)) == ""
    assert marks(RoundPicture(PictureKind.GUESS, 1)) == "??"
    assert marks(RoundPicture(PictureKind.CHECK)) == "???"
    assert marks(RoundPicture(PictureKind.JUDGE, 0)) == "■??"
    assert marks(RoundPicture(PictureKind.JUDGE, 1)) == "■✗▲·"
    assert marks(RoundPicture(PictureKind.END)) == "■✗▲·"
    assert marks(RoundPicture(PictureKind.END), 3) == "■■■◆"
    assert marks(RoundPicture(PictureKind.END), 0) == "✗▲··"
    alone = cells(explained(0, guesses=()), RoundPicture(PictureKind.END))
    assert [mark for _, mark in alone] == ["□"]  # as in the panel: a bonus follows a draft


def test_every_mark_stands_below_its_token_however_narrow() -> None:
    tokens = cells(explained(), RoundPicture(PictureKind.END))
    for width in (8, 12, 20, 60):
        lines = [line.plain for line in token_lines(tokens, width)]
        assert max(map(len, lines)) <= width
        for words, marks in zip(lines[::2], lines[1::2], strict=True):
            for at, mark in enumerate(marks):
                if mark != " ":
                    assert words[at - 1] == "│"
        assert "".join(lines[::2]).replace("│", "") == " the dog cat ran"


@pytest.mark.parametrize("width", [20, 40, 76, 120])
@pytest.mark.parametrize("accepted", [0, 1, 3])
def test_every_picture_fits_and_explains_its_words(width: int, accepted: int) -> None:
    one = explained(accepted)
    for now in pictures(one):
        said(now, one, width, 10)
    whole = " ".join(" ".join(said(now, one, width, 60).split()) for now in pictures(one))
    last = "Bonus: all guesses stay" if accepted == 3 else "Recovered:"
    for text in ("gamma 3:", "accepted: the target keeps", last, "p/q = 0.5", "So it is."):
        assert text in whole
    assert "One pass of the target over 4 tokens" in whole
    assert "than without drafting" in whole


def test_what_has_no_probabilities_says_so() -> None:
    one = explained(drafter=LOOKUP)
    text = said(RoundPicture(PictureKind.GUESS, 0), one)
    assert "It copies: it has no probabilities." in text
    assert "Copied from where the same tokens stood before" in text
    for name in ("mtp", "eagle3", "eagle3 2"):
        assert (
            "guessed by a head"
            in said(RoundPicture(PictureKind.GUESS, 0), explained(drafter=name)).lower()
        )


def test_a_guess_that_is_not_among_the_best_is_shown_with_them() -> None:
    lines = bars(opinion(0.01, ("a", 0.5), ("b", 0.4)), "z", 40, "")
    assert "▸ z" in lines[-1].plain
    assert "1 %" in lines[-1].plain
    assert len(lines) == 2


def test_tokens_of_nothing_but_blanks_and_breaks_can_be_seen() -> None:
    assert visible("\n") == "⏎"
    assert visible("  ") == "␣␣"
    assert visible("") == "∅"
    assert "\x1b" not in visible("\x1b[2J")


def test_the_cost_is_shown_next_to_that_without_drafting() -> None:
    text = "\n".join(line.plain for line in detail(explained(2), RoundPicture(PictureKind.END), 76))
    assert "9 ms" in text
    assert "21 ms" in text  # three passes of 7
    assert "2.3× faster than without drafting" in text
    alone = replace(explained(0, guesses=()), baseline_s=1.2345)
    text = "\n".join(line.plain for line in detail(alone, RoundPicture(PictureKind.END), 76))
    assert "1 token in one pass (this round alone)" in text
    assert "writing" in text  # nothing was checked
    assert "checking" not in text
    assert "1,234 ms  1 pass of 1,234" in text


def test_a_round_that_would_be_decided_otherwise_today_is_told() -> None:
    now = RoundPicture(PictureKind.BEFORE)
    assert "Decoded again" not in said(now, explained())
    assert "last digits may differ" in said(now, explained(again=True))
    text = " ".join(said(now, explained(again=True, same=False)).split())
    assert "would now decide otherwise" in text


def test_a_player_steps_and_stops_at_both_ends() -> None:
    player = RoundPlayer()
    assert not player.step(1)
    player.show(explained())
    assert not player.step(-1)
    assert player.step(1)
    player.show(explained(), at_end=True)
    assert not player.step(1)


# ---------------------------------------------------------------- the screen


async def opened(chat: Chat) -> RoundScreen:
    await chat.press("ctrl+s")
    await chat.until(lambda: isinstance(chat.app.screen, RoundScreen), "the view")
    screen = chat.app.screen
    assert isinstance(screen, RoundScreen)
    screen.player.playing = False
    return screen


async def end_of_rounds(chat: Chat, screen: RoundScreen) -> None:
    """The screen says that no further round has a draft, until another key asks for more."""
    now = screen.player.explained
    assert now is not None
    screen.player.show(replace(now, later=0, earlier=0))
    await chat.press("n")
    assert "no later round has a draft" in chat.screen()
    await chat.press("p")
    assert "no earlier round has a draft" in chat.screen()
    await chat.press("right")
    assert "round has a draft" not in chat.screen()
    screen.player.show(now)


async def test_keys_step_turn_pause_and_close(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("localspec.ui.screens.rounds._STEP_S", 600.0)  # keys alone step

    async with chatting(size=(80, 24)) as chat:
        chat.session.explained = explained()
        await chat.ask("Hello?")
        screen = await opened(chat)
        await chat.until(lambda: "round 5 of 9" in chat.screen())
        for key in ("Space", "step", "back", "next round", "previous", "Esc"):
            assert key in chat.screen()
        await chat.press("right", "right")
        assert screen.player.at == 2
        await chat.press("left")
        assert screen.player.at == 1
        await chat.press("n")
        await chat.until(lambda: "round 7 of 9" in chat.screen())
        await chat.press("p")
        await chat.until(lambda: "round 3 of 9" in chat.screen())
        await chat.press("p")  # told before, and not asked for again
        assert chat.session.looks == [0, 7, 3]
        await end_of_rounds(chat, screen)
        assert "pause" not in chat.screen()
        await chat.press("space")
        assert "pause" in chat.screen()
        await chat.press("q")
        assert not isinstance(chat.app.screen, RoundScreen)
        await chat.until(lambda: not chat.timers(), "rest")


async def test_the_first_frame_says_what_it_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine the next frame comes seconds later."""
    monkeypatch.setattr(RoundScreen, "on_resize", lambda _: None)
    async with chatting(size=(80, 24)) as chat:
        await chat.ask("Hello?")
        monkeypatch.setattr(RoundScreen, "hear", lambda *_: None)
        await chat.press("ctrl+s")
        await chat.until(lambda: "decoding a round again …" in chat.screen(), "why it is empty")


async def test_it_plays_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("localspec.ui.screens.rounds._STEP_S", 0.02)

    async with chatting(size=(80, 24)) as chat:
        chat.session.explained = explained(later=0)
        await chat.ask("Hello?")
        await chat.press("ctrl+s")
        await chat.until(lambda: "than without drafting" in chat.screen(), "the end")
        await chat.until(lambda: "Space play" in chat.screen(), "standstill")


async def test_a_running_answers_next_round_comes_as_it_is_made() -> None:
    async with chatting(size=(80, 24), gate=Gate(is_open=False)) as chat:
        await chat.send("Hello?")
        await chat.until(lambda: chat.app.turns.busy)
        await opened(chat)
        await chat.until(lambda: chat.session.watching is not None, "the wish")
        assert "waiting for the next round" in chat.screen()
        assert chat.session.watching is not None
        chat.session.watching(explained())
        await chat.until(lambda: "round 5 of 9" in chat.screen())
        chat.session.gate.open()
        await chat.until(chat.ready)
        assert chat.session.looks == []
        await chat.press("escape")


@pytest.mark.slow
async def test_where_nothing_is_known_it_says_so_and_what_to_do() -> None:
    async with chatting() as chat:
        await chat.press("ctrl+s")
        await chat.until(lambda: "there is no answer yet" in chat.transcript())
        await chat.ask("Hello?")
        await opened(chat)
        await chat.until(lambda: "there is no such round" in chat.screen())
        await chat.press("escape")
        await chat.send("/round 9")
        await chat.until(lambda: "there is no such answer" in chat.transcript())
        chat.app.turns._numbers.clear()  # as after another start
        await chat.send("/round 1")
        way = "F5 answers the last question again: look then."
        await chat.until(lambda: way in " ".join(chat.transcript().split()))
        assert chat.transcript().count("Ask something first.") == 1


@pytest.mark.slow
async def test_a_real_answer_is_looked_into_while_it_is_written_and_afterwards() -> None:
    request = LoadRequest(
        pair="toy",
        ctx_size=8192,
        temp=0.8,
        seed=3,
        gamma=3,
        grammar=ENDLESS,
        n_predict=-1,
        threads=1,
    )

    app = ChatApp(EngineClient(request))
    async with app.run_test(size=(80, 24)) as pilot:
        chat = Chat(app, pilot, None)  # type: ignore[arg-type]
        await chat.until(lambda: app.session is not None, "loading")
        await chat.send("Tell me a story about a dog.")
        await chat.until(lambda: app.turns.busy)
        screen = await opened(chat)
        await chat.until(lambda: screen.player.explained is not None, "a round")
        first = screen.player.explained
        assert first is not None
        assert app.turns.busy
        assert not first.again
        assert first.guesses
        assert first.same
        await chat.press("escape", "escape")
        await chat.until(chat.ready, "the end")
        screen = await opened(chat)
        await chat.until(lambda: screen.player.explained is not None, "a round again")
        again = screen.player.explained
        assert again is not None
        assert again.again
        assert again.number >= first.number
        await chat.press("p")
        await chat.until(lambda: (screen.player.explained or again).number < again.number)
        await chat.press("escape")
    app.engine.shut_down()
    assert app.engine.join(10)


def test_content_has_no_markup() -> None:
    last = RoundPicture(PictureKind.END)
    assert isinstance(token_lines(cells(explained(), last), 40)[0], Content)
    assert replace(explained(), token="[b]x[/b]").token in said(
        RoundPicture(PictureKind.END), replace(explained(), token="[b]x[/b]")
    )


async def test_the_next_picture_lays_nothing_out_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """A layout would take as long as the rest of the picture, on a core that a model needs."""
    laid: list[object] = []
    plainly = RoundScreen._refresh_layout

    def counted(self: RoundScreen, *how: Any, **more: Any) -> None:
        laid.append(how)
        plainly(self, *how, **more)

    async with chatting(size=(100, 30)) as chat:
        engine = Mock(turn=1, explain_round=Mock(return_value=7))
        screen = RoundScreen(Mock(busy=True, engine=engine), 1)
        await chat.app.push_screen(screen)
        screen.hear(6, explained(), "")  # which was asked for before this screen was open
        assert screen.player.waits
        screen.hear(7, explained(), "")
        screen.action_pause()
        await chat.until(lambda: "1/8" in chat.screen(), "the first picture")
        await chat.pilot.pause(0.1)
        monkeypatch.setattr(RoundScreen, "_refresh_layout", counted)
        await chat.press("right")
        await chat.until(lambda: "2/8" in chat.screen(), "the second one")
        await chat.pilot.pause(0.1)
        assert not laid
        assert "Space play" in chat.screen()
        await chat.press("space")
        await chat.until(lambda: "Space pause" in chat.screen(), "the keys")
