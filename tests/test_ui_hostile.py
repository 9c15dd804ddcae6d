"""Hostile answers and imports on the screen: no step holds it up, nothing steers the terminal.

Many more of them by `python -m tests.support.attack screen`.
"""

from __future__ import annotations

import pytest

from localspec.chat.events import Origin, Span
from localspec.ui.transcript.growing import GrowingMarkdown
from localspec.ui.transcript.items import Answer
from localspec.ui.transcript.markdown_blocks import code_blocks
from tests.support.hostile_texts import Shown, hostile, show
from tests.support.pairwise import usually

LONGEST_S = 0.25
BATCH = 3


@pytest.mark.parametrize(
    "batch", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in range(1, 84))]
)
def test_a_hostile_text_never_holds_up_the_screen(batch: int) -> None:
    for seed in range(batch * BATCH, (batch + 1) * BATCH):
        shown = show(hostile(seed), seed)
        assert shown.controls == "", seed
        assert shown.slowest[0] < LONGEST_S, (seed, shown.slowest)


LARGE = {
    "definitions": "".join(f"[name {i}]: http://a.b/{i}\n" for i in range(20_000)),
    "one definition": "[a]: b\n" * 20_000,
    "minified": '```json{"list":[' + '{"key":"value"},' * 60_000,
    "table": "|" + "a|" * 2000 + "\n|" + "-|" * 2000 + "\n" + "|\n" * 20_000,
    "thoughts": "<think>" + "a thought\n" * 30_000 + "</think>done",
    "ticks": "`" * 300_000,
    "brackets": "[" * 60_000,
    "quotes": ">" * 30 + "a\n=\n" * 10_000,
}


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", usually(LARGE, "minified", "ticks", "quotes"))
def test_a_large_import_is_shown_step_by_step(kind: str) -> None:
    text = LARGE[kind]
    shown = Shown()
    answer = Answer([Span(text, Origin.TARGET)])
    answer.show_thoughts(True)
    shown.step("finish", lambda: answer.finish({}, None))
    while shown.step("step", lambda: answer.advance(80)):
        pass
    shown.step("copy", lambda: code_blocks(text))
    assert shown.slowest[0] < LONGEST_S, shown.slowest


def test_a_name_of_a_control_character_is_no_way_out() -> None:
    text = "a &#27;[2J &#13; &#x202e; [l](http://a.b/&#13; '&#13;') ![i&#13;](x&#x9b;) `&#13;`"
    _, live = GrowingMarkdown().add([Span(text, Origin.TARGET)])
    answer = Answer([Span(text, Origin.TARGET)])
    answer.finish({}, None)
    assert live
    plain = "".join(line.plain for line in answer.lines(500))
    assert not [char for char in plain if not char.isprintable()]
