"""Characters across tokens, stop strings across rounds, and who proposed what."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.chat.dialects import Dialect
from localspec.chat.dialects.shapes import AnswerMarks
from localspec.chat.events import Origin, RoundText, Span, joined
from localspec.chat.session.answer import AnswerText, Detokeniser, StopFilter
from localspec.engine.record.stats import FinishReason, Round

DRAFT, TARGET = Origin.DRAFT, Origin.TARGET


def text_of(spans: tuple[Span, ...]) -> str:
    return "".join(span.text for span in spans)


def detokenised(pieces: list[tuple[bytes, Origin]]) -> tuple[Span, ...]:
    detokeniser = Detokeniser()
    spans: list[Span] = []
    for piece, origin in pieces:
        spans += detokeniser.feed(piece, origin)
    return joined((*spans, *detokeniser.flush()))


def test_a_character_waits_for_its_last_byte() -> None:
    detokeniser = Detokeniser()
    assert detokeniser.feed("a€".encode()[:3], TARGET) == (Span("a", TARGET),)
    assert detokeniser.feed("€".encode()[2:], TARGET) == (Span("€", TARGET),)
    assert detokeniser.flush() == ()


@pytest.mark.parametrize(
    ("origins", "expected"),
    [
        ((DRAFT, DRAFT, DRAFT), DRAFT),
        ((DRAFT, DRAFT, TARGET), TARGET),
        ((TARGET, DRAFT, DRAFT), TARGET),
        ((DRAFT, TARGET, DRAFT), TARGET),
    ],
)
def test_a_character_is_the_drafts_only_if_all_its_bytes_are(
    origins: tuple[Origin, ...], expected: Origin
) -> None:
    pieces = [(bytes([byte]), origin) for byte, origin in zip("€".encode(), origins, strict=True)]
    assert detokenised([*pieces, (b"x", DRAFT)])[0].origin is expected


def test_the_rest_of_a_token_that_completes_a_character_keeps_its_origin() -> None:
    euro = "€".encode()
    spans = detokenised([(b"a" + euro[:1], DRAFT), (euro[1:] + b"b", TARGET)])
    assert spans == (Span("a", DRAFT), Span("€b", TARGET))
    spans = detokenised([(b"a" + euro[:1], TARGET), (euro[1:] + b"b", DRAFT)])
    assert spans == (Span("a€", TARGET), Span("b", DRAFT))


def test_invalid_bytes_are_replaced_and_an_unfinished_character_ends() -> None:
    assert text_of(detokenised([(b"a\xff", TARGET), (b"b\xe2\x82", TARGET)])) == "a\ufffdb\ufffd"


@given(st.binary(max_size=30), st.lists(st.integers(0, 30), max_size=8))
def test_cutting_bytes_into_tokens_never_changes_the_text(raw: bytes, cuts: list[int]) -> None:
    at = [0, *sorted(c for c in cuts if c <= len(raw)), len(raw)]
    pieces = [(raw[a:b], TARGET) for a, b in pairwise(at)]
    assert text_of(detokenised(pieces)) == raw.decode("utf-8", "replace")


def stopped(parts: list[str], stops: list[str]) -> tuple[str, str | None, list[str]]:
    stop_filter = StopFilter(stops)
    released = [text_of(stop_filter.feed((Span(part, TARGET),))) for part in parts]
    released.append(text_of(stop_filter.flush()))
    return "".join(released), stop_filter.hit, released


def test_a_stop_string_across_pieces_is_left_out() -> None:
    text, hit, released = stopped(["one S", "TO", "P two"], ["STOP"])
    assert (text, hit) == ("one ", "STOP")
    assert released[0] == "one "


def test_what_turns_out_to_be_no_stop_string_is_released() -> None:
    text, hit, released = stopped(["one ST", "AND"], ["STOP"])
    assert (text, hit) == ("one STAND", None)
    assert released == ["one ", "STAND", ""]


def test_a_held_back_end_is_released_at_the_end() -> None:
    assert stopped(["one ST"], ["STOP"])[0] == "one ST"


def test_the_stop_that_is_complete_first_wins() -> None:
    assert stopped(["xabcd"], ["abcd", "bc"])[:2] == ("xa", "bc")
    assert stopped(["xabc"], ["bc", "abc"])[:2] == ("x", "abc")
    assert stopped(["a b c"], ["c", "b"])[:2] == ("a ", "b")


def test_a_repeated_beginning_is_no_trap() -> None:
    assert stopped(["aa", "a", "b"], ["aab"])[:2] == ("a", "aab")


def test_empty_stop_strings_are_ignored() -> None:
    assert stopped(["abc"], ["", ""])[:2] == ("abc", None)


def test_held_back_text_keeps_its_origin() -> None:
    stop_filter = StopFilter(["STOP"])
    assert stop_filter.feed((Span("a S", DRAFT),)) == (Span("a ", DRAFT),)
    released = stop_filter.feed((Span("x", TARGET),))
    assert released == (Span("S", DRAFT), Span("x", TARGET))


@given(st.text("abS", max_size=14), st.lists(st.text("abS", max_size=4), max_size=3), st.data())
def test_stops_do_not_depend_on_how_text_is_cut(
    text: str, stops: list[str], data: st.DataObject
) -> None:
    cut = data.draw(st.integers(0, len(text)))
    whole = stopped([text], stops)[:2]
    assert stopped(list(text), stops)[:2] == whole
    assert stopped([text[:cut], text[cut:]], stops)[:2] == whole


@pytest.mark.parametrize(
    ("opening", "text", "released", "hit"),
    [
        ("", "<think>a\n\nb</think>Yes", "<think>a\n\nb</think>Yes", ""),
        ("", "<think>a</think>\n\nYes\n\nNo", "<think>a</think>\n\nYes", "\n\n"),
        ("<think>", "a\n\nb\n</think>\n\nYes\n\nNo", "a\n\nb\n</think>\n\nYes", "\n\n"),
        ("<think>", "a\n\nb<|end|>c", "a\n\nb", "<|end|>"),
        ("<think>", "a\n\n", "a\n\n", ""),
        ("", "a\n\n<think>b", "a", "\n\n"),
        ("", "\n\na", "", "\n\n"),
        ("<think>", "of <think>.</think>\n\nYes\n\nNo", "of <think>.</think>\n\nYes", "\n\n"),
        ("<think>", "a <think> b</think>c</think>\n\nd", "a <think> b</think>c</think>\n\nd", ""),
        ("<think>", "`</think>\n\n` a</think>b\n\n", "`</think>\n\n` a</think>b", "\n\n"),
        (
            "<think>",
            "a <think>…</think> b.\n\nc</think>d",
            "a <think>…</think> b.\n\nc</think>d",
            "",
        ),
    ],
)
@pytest.mark.parametrize("size", [1, 2, 5, 100])
def test_a_clients_stop_strings_count_outside_of_thoughts(
    opening: str, text: str, released: str, hit: str, size: int
) -> None:
    pieces = [text[i : i + size].encode() for i in range(0, len(text), size)]
    reader = Dialect().reader((), prompt=opening)
    said = AnswerText(pieces.__getitem__, ["<|end|>"], own_stops=["\n\n"], reader=reader)
    ids = tuple(range(len(pieces)))
    said.add(Round(ids, 0, 0, 0, 0.0, 0.0, 0.0, finish=FinishReason.STOP))
    assert (said.text, said.stopped_by) == (released, hit)


PLAIN = AnswerMarks(content=("<answer>",), closers=("</answer>",))
HARMONY = AnswerMarks(speech="harmony")
HM = "<|channel|>analysis<|message|>hm<|end|>"
FINAL = "<|start|>assistant<|channel|>final<|message|>"
CALL = '<|start|>assistant<|channel|>commentary to=functions.f<|message|>{"a": "b'


@pytest.mark.parametrize(
    ("marks", "stop", "text", "released"),
    [
        (PLAIN, "<", "<think>a</think>Yes <b", "<think>a</think>Yes "),
        (PLAIN, "<", "<b", ""),
        (PLAIN, "</s>", "<think>a</think></s>b", "<think>a</think>"),
        (
            PLAIN,
            "\n",
            "<think>\na\n</think>\n<answer>\nYes\n",
            "<think>\na\n</think>\n<answer>\nYes",
        ),
        (PLAIN, "</answer>", "<think>a</think><answer>Yes</answer>", "<think>a</think><answer>Yes"),
        (PLAIN, "<answer>", "<think>a</think>Yes<answer>", "<think>a</think>Yes"),
        (HARMONY, "assistant", f"{HM}{FINAL}An assistant", f"{HM}{FINAL}An "),
        (HARMONY, "assistant", "An assistant", "An "),
        (HARMONY, "<|", f"{HM}{FINAL}a<|end|>", f"{HM}{FINAL}a"),
        (HARMONY, "b", f"{HM}{CALL}", f"{HM}{CALL}"[:-1]),
        (HARMONY, "assistant", f"{HM}<|start|>assistant", f"{HM}<|start|>assistant"),
        (PLAIN, "\n", "<think>a</think>\n<answ", "<think>a</think>\n<answ"),
        (HARMONY, "\n\n", f"{HM}\n\nYes", f"{HM}\n\nYes"),
    ],
)
@pytest.mark.parametrize("size", [1, 3, 1000])
def test_a_clients_stop_strings_do_not_count_in_marks_around_thoughts(
    marks: AnswerMarks, stop: str, text: str, released: str, size: int
) -> None:
    pieces = [text[i : i + size].encode() for i in range(0, len(text), size)]
    reader = Dialect(marks=marks).reader(())
    said = AnswerText(pieces.__getitem__, (), own_stops=[stop], reader=reader)
    said.add(Round(tuple(range(len(pieces))), 0, 0, 0, 0.0, 0.0, 0.0, finish=FinishReason.STOP))
    assert (said.text, said.stopped_by) == (released, "" if released == text else stop)


def test_where_thoughts_stay_in_the_answer_stop_strings_count_within_them() -> None:
    reader = Dialect().raw().reader((), prompt="<think>")
    said = AnswerText(lambda _: b"a\n\nb</think>Yes", (), own_stops=["\n\n"], reader=reader)
    said.add(one_round("x"))
    assert (said.text, said.stopped_by) == ("a", "\n\n")


def one_round(tokens: str, accepted: int = 0, finish: FinishReason | None = None) -> Round:
    ids = tuple(tokens.encode())
    return Round(ids, accepted, accepted, accepted, 0.0, 0.0, 0.0, finish=finish)


def answer(*stops: str, drafters: tuple[str, ...] = ()) -> AnswerText:
    return AnswerText(lambda token: bytes([token]), stops, drafters)


def test_accepted_tokens_are_the_drafts_and_the_last_one_is_the_targets() -> None:
    event = answer().add(one_round("abc", accepted=2))
    assert event.spans == (Span("ab", DRAFT), Span("c", TARGET))


def test_of_a_draft_that_lookup_went_on_with_each_piece_is_its_drafters() -> None:
    both = Round(tuple(b"abcde"), 4, 4, 4, 0.0, 0.0, 0.0, drafter="draft", copied=3)
    assert answer().add(both).spans == (
        Span("a", DRAFT),
        Span("bcd", Origin.LOOKUP),
        Span("e", TARGET),
    )
    several = answer(drafters=("eagle3", "draft"))  # in the order in which they were named
    assert [each.origin for each in several.add(both).spans] == [
        Origin.SECOND,
        Origin.LOOKUP,
        TARGET,
    ]
    head = replace(both, drafter="eagle3", copied=0)
    assert several.add(head).spans == (Span("abcd", DRAFT), Span("e", TARGET))
    alone = Round(tuple(b"abc"), 3, 3, 2, 0.0, 0.0, 0.0, drafter="lookup", copied=3)
    assert answer().add(alone).spans == (Span("ab", Origin.LOOKUP), Span("c", TARGET))


def test_a_multi_byte_character_across_two_rounds() -> None:
    euro = "€".encode()
    writing = answer()
    first = writing.add(Round(tuple(b"a" + euro[:2]), 3, 3, 3, 0.0, 0.0, 0.0))
    second = writing.add(Round((euro[2],), 0, 0, 0, 0.0, 0.0, 0.0, finish=FinishReason.STOP))
    assert first.spans == (Span("a", DRAFT),)
    assert second.spans == (Span("€", TARGET),)


def test_a_stop_string_across_two_rounds_ends_the_answer_and_cuts_the_round() -> None:
    writing = answer("END")
    first = writing.add(one_round("abE"))
    second = writing.add(one_round("NDxy", accepted=3))
    assert (first.text, second.text) == ("ab", "")
    assert second.round.finish is FinishReason.STOP
    assert bytes(second.round.tokens) == b"ND"
    assert bytes(writing.tokens) == b"abEND"
    assert (second.round.drafted, second.round.accepted) == (3, 3)
    assert writing.text == "ab"


def test_the_last_round_releases_what_was_held_back() -> None:
    writing = answer("END")
    assert writing.add(one_round("abEN")).text == "ab"
    last: RoundText = writing.add(one_round("", finish=FinishReason.LENGTH))
    assert last.text == "EN"
    assert writing.text == "abEN"
