"""What the screen shows, without a screen: safe text, figures, drawings, Markdown."""

from __future__ import annotations

import random
import re
import time
from itertools import combinations, pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from textual.color import Color
from textual.content import Content
from textual.theme import BUILTIN_THEMES

from localspec import formats
from localspec.chat.events import Origin, Span
from localspec.errors import UsageError
from localspec.pairs.hub.download import FileProgress
from localspec.safe_text import one_line, safe, shortened
from localspec.ui import launch
from localspec.ui.commands import command_table
from localspec.ui.commands.command import as_typed, message_text, parse
from localspec.ui.commands.command_table import COMMANDS
from localspec.ui.input.prompt_area import InputHistory
from localspec.ui.panel import drawing
from localspec.ui.screens import pair_lines
from localspec.ui.transcript.blocks import Block, CodeBlock, TableBlock, lay_out
from localspec.ui.transcript.cutting import Cut, cut
from localspec.ui.transcript.growing import STYLES, GrowingMarkdown, GrowingOrigins
from localspec.ui.transcript.items import Answer, Question
from localspec.ui.transcript.markdown_blocks import code_lines
from localspec.ui.transcript.markdown_blocks import parse as parsed

UI = Path(launch.__file__).parent

MARKDOWN = """# Title

A *draft* and a **target** with `code` and ~~errors~~.
A second line.

1. one
2. two
   - inner
   - inner two

- a

  loose

> quoted
> more

```python
def f(x):
    return "``" + x
```

| a | b |
|---|---|
| 1 | a long cell that has to be wrapped somewhere |

---
Setext
===
The end: <b>bold?</b> [link](http://x.y) ![image](z.png)
"""


def shown(source: str, width: int = 60) -> list[str]:
    final, live = GrowingMarkdown().add([Span(source, Origin.TARGET)])
    return [line.plain.rstrip() for line in lay_out([*final, *live], width)]


def test_control_characters_become_pictures() -> None:
    assert safe("a\x1b[31mred\x07") == "a␛[31mred␇"
    assert safe("x\x7fy\x9b2Jz") == "x␡y\ufffd2Jz"
    assert safe("left\u202eright\u2066") == "left\ufffdright\ufffd"
    assert safe("half \ud83d") == "half \ufffd"
    assert safe("a\r\nb\u2028c\x0bd\te") == "a\nb\nc\nd\te"
    assert safe("déjà vu 漢字 👩‍👩‍👧 مرحبا") == "déjà vu 漢字 👩‍👩‍👧 مرحبا"
    assert one_line("a\nb" * 200, 10) == "a ba ba b…"


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "–"), (3.14159, "3.1"), (99.96, "100.0"), (1234.5, "1,234")],
)
def test_speed(value: float | None, text: str) -> None:
    assert formats.speed(value) == text


def test_other_figures() -> None:
    assert formats.counted(1, "layer") == "1 layer"
    assert formats.counted(1234, "layer") == "1,234 layers"
    assert formats.size(512) == "512 bytes"
    assert formats.size(17 << 20) == "17.8 MB"
    assert formats.size(3 << 40) == "3.3 TB"
    assert formats.many(999_400_000) == "999 million"
    assert formats.many(999_600_000) == "1 billion"
    assert formats.many(1_026_000_000_000) == "1.03 trillion"
    assert formats.percent(0.714) == "71 %"
    assert formats.percent(None) == "–"
    assert formats.seconds(0.0212) == "21 ms"
    assert formats.seconds(3.21) == "3.2 s"
    assert formats.seconds(125) == "2 min 05 s"


def test_bars_fill_their_width() -> None:
    for share in (None, -1.0, 0.0, 0.33, 1.0, 7.0):
        assert drawing.bar(share, 10).cell_length == 10
    assert drawing.bar(0.5, 10).plain == "━━━━━─────"
    parts = [(1, "a", ""), (0, "b", ""), (10**9, "c", "")]
    assert drawing.stacked_bar(parts, 10).plain == "accccccccc"
    assert drawing.sparkline([], 5).plain == "▁▁▁▁▁"
    assert drawing.sparkline([0, 1, 2], 5).plain == "▁▁▁▅█"
    assert drawing.stacked_bar([(1, "█", ""), (3, "░", "")], 8).plain == "██░░░░░░"


def test_rounds_are_drawn_newest_on_the_right_and_readable_without_colour() -> None:
    rounds = ["■■■◆", "■▲··", "□"]
    lines = [line.plain for line in drawing.round_columns(rounds, 6, 4)]
    assert lines == ["◆ ·   ", "■ ·   ", "■ ▲   ", "■ ■ □ "]
    assert [line.plain for line in drawing.round_columns(rounds, 6, 2)] == ["◆ ▲   ", "■ ■ □ "]


def test_markdown_is_laid_out() -> None:
    lines = shown(MARKDOWN)
    assert lines[:4] == [
        "Title", "", "A draft and a target with code and errors.", "A second line."
    ]  # fmt: skip
    assert "1. one" in lines
    assert "   ◦ inner two" in lines
    assert "▌ quoted" in lines
    assert " def f(x):" in lines
    assert "a │ b" in lines
    assert "The end: <b>bold?</b> link ‹http://x.y› 🖼 image ‹z.png›" in lines
    assert not any(one == two == "" for one, two in pairwise(lines))


@pytest.mark.parametrize(
    ("link", "told"),
    [
        ("<https://x.y/z>", "https://x.y/z"),
        ("[https://x.y/z](https://x.y/z)", "https://x.y/z"),
        ("[**https://x.y**/z](https://x.y/z)", "https://x.y/z"),
        ("[https://x.y/z](https://x.z/y)", "https://x.y/z ‹https://x.z/y›"),
        ("[https://x.y/z](https://x.y/Z)", "https://x.y/z ‹https://x.y/Z›"),
        ("[x.y/z](https://x.y/z)", "x.y/z ‹https://x.y/z›"),
        ("[](https://x.y/z)", "‹https://x.y/z›"),
        ("[]()", "‹›"),
    ],
)
def test_a_link_shows_where_it_leads_once(link: str, told: str) -> None:
    (line,) = shown(f"See {link}.")
    assert " ".join(line.split()) == f"See {told}."


@pytest.mark.parametrize("columns", [13, 30])
def test_a_table_of_more_columns_than_fit_loses_none(columns: int) -> None:
    rows = [[f"{row}{n:02}" for n in range(columns)] for row in "hab"]
    table = TableBlock(tuple(tuple(map(Content, row)) for row in rows))
    lines = lay_out([Block(table)], 55)
    assert max(line.cell_length for line in lines) <= 55
    text = "\n".join(line.plain for line in lines)
    assert [cell for row in rows for cell in row if cell not in text] == []
    assert ("┼" in text) is (columns == 13)


@pytest.mark.timed
def test_a_table_of_a_thousand_columns_is_laid_out_at_once() -> None:
    row = tuple(Content("x" * 20) for _ in range(1000))
    started = time.thread_time()
    lay_out([Block(TableBlock((row, row)))], 80)
    assert time.thread_time() - started < 0.5


def test_tabs_do_not_move_the_colours_of_code() -> None:
    lines = code_lines("func f() {\n\tx := 1\n\treturn x\n}", "go")
    for line in (lines[2], lay_out([Block(CodeBlock(lines))], 40)[2]):
        keywords = [span for span in line.spans if span.style == "$text-accent"]
        assert [line.plain[span.start : span.end] for span in keywords] == ["return"]


def test_no_line_is_wider_than_the_screen() -> None:
    for width in (12, 20, 37, 80):
        for line in lay_out(GrowingMarkdown().add([Span(MARKDOWN, Origin.TARGET)])[0], width):
            assert line.cell_length <= max(width, 16)


@pytest.mark.parametrize("seed", range(20))
def test_streamed_markdown_equals_markdown_at_once(seed: int) -> None:
    rng = random.Random(seed)
    growing = GrowingMarkdown()
    final: list[Block] = []
    live: list[Block] = []
    rest = MARKDOWN
    while rest:
        size = rng.randint(1, 9)
        more, live = growing.add([Span(rest[:size], Origin.TARGET)])
        final += more
        rest = rest[size:]
    streamed = [line.plain.rstrip() for line in lay_out([*final, *live], 60)]
    assert streamed == shown(MARKDOWN)


def test_a_line_of_a_megabyte_grows_in_bounded_pieces() -> None:
    growing, length = GrowingMarkdown(), 0
    for _ in range(100):
        final, live = growing.add([Span("x" * 10_000, Origin.TARGET)])
        length += sum(line.cell_length for line in lay_out(final, 1000))
        assert sum(line.cell_length for line in lay_out(live, 1000)) <= 4000
    assert length >= 990_000


def test_a_long_listing_stays_code_when_it_is_cut() -> None:
    growing, plain = GrowingMarkdown(), []
    for piece in ["```python\n", *["print('a line of code')\n" * 20] * 25, "```\n\nafter\n"]:
        final, live = growing.add([Span(piece, Origin.TARGET)])
        plain += [line.plain for line in lay_out(final, 80)]
    plain += [line.plain for line in lay_out(live, 80)]
    code = [line for line in plain if "print" in line]
    assert len(code) == 500
    assert not any("```" in line for line in plain)
    assert plain[-1] == "after"


def grown(source: str, width: int = 80) -> list[str]:
    """The lines of a text that comes in pieces."""
    growing, lines = GrowingMarkdown(), []
    for start in range(0, len(source), 300):
        final, live = growing.add([Span(source[start : start + 300], Origin.TARGET)])
        lines += lay_out(final, width)
    return [line.plain.rstrip() for line in [*lines, *lay_out(live, width)]]


def in_one(source: str, width: int = 80) -> list[str]:
    """The lines of a text of one block that is parsed without a cut."""
    (block,) = parsed(source)
    return [line.plain.rstrip() for line in lay_out(block.blocks(), width)]


_CODE = [f"line_{n} = {{'of': 'code'}}" for n in range(300)]


def indented(lines: list[str], by: str) -> str:
    return "".join(f"{by}{line}\n" for line in lines)


@pytest.mark.parametrize(
    "text",
    [
        "".join(f"- item {n}\n  - inner\n    goes on\n" for n in range(300)),
        "".join(f"{n}. item\n\n    details of {n}\n    {_CODE[n]}\n\n" for n in range(1, 100)),
        "1. Save it:\n\n   ```text\n" + indented(_CODE, "   ") + "   ```\n\n   Run it.\n2. End\n",
        "- a\n  - b\n    - c:\n      ~~~\n" + indented(_CODE, "      ") + "      ~~~\n- d\n",
        "- ```\n" + indented(_CODE, "  ") + "  ```\n  after\n",
        "> Save:\n> ```text\n" + indented(_CODE, "> ") + "> ```\n> Run.\n",
        "- Save:\n  > ```text\n" + indented(_CODE, "  > ") + "  > ```\n  > Run.\n",
        "".join(f"> line {n}\n" for n in range(900)),
        "1. All of it:\n" + "".join(f"   - part {n}\n     goes on\n" for n in range(300)),
        "- All of it:\n\n" + indented(_CODE, "    "),
        "```text\n" + "\n\n".join(_CODE) + "\n```\n",
        indented(_CODE, "    "),
        "".join(f"- item {n}\n    - inner\n        - inmost\n" for n in range(300)),
        "".join(f"1. item {n}\n   1. inner\n   1. of {n}\n" for n in range(300)),
        "".join(f">- item {n}\n>  goes on\n" for n in range(300)),
        "- - - inmost\n" + "".join(f"    - part {n}\n      goes on\n" for n in range(300)),
        "*    All of it:\n\n" + "".join(f"     part {n} of it\n\n" for n in range(300)),
        "-      code\n" + indented(_CODE, "       "),
        "-\n  -\n    text\n" + "".join(f"  - part number {n}\n" for n in range(300)),
        "- * * *\n" + "".join(f"  - part number {n}\n" for n in range(300)),
    ],
)  # fmt: skip
def test_what_is_cut_goes_on_in_the_same_list_quote_or_fence(text: str) -> None:
    assert len(text) > 5000
    shown_once, cut_up = in_one(text), grown(text)
    for one, other in zip(shown_once, cut_up, strict=False):
        assert one == other
    assert len(shown_once) == len(cut_up)


def test_every_part_of_a_table_that_is_cut_begins_with_its_head() -> None:
    cells = [f"{n} │ a cell of it" for n in range(900)]
    table = "".join(f"  | {cell.replace('│', '|')} |\n" for cell in cells)
    lines = grown(f"- All of it:\n\n  | n | text |\n  |---|---|\n{table}- end\n")
    rows = [re.sub(" +", " ", line).strip() for line in lines if "│" in line]
    assert [row for row in rows if row != "n │ text"] == cells
    heads = [n for n, line in enumerate(lines) if line.endswith("│ text")]
    assert len(heads) > 3
    assert all(set(lines[n + 1].strip()) == {*"─┼"} for n in heads)
    assert lines[-1] == "• end"


@pytest.mark.parametrize("more", range(28))
def test_a_number_that_is_read_in_part_is_no_text(more: int) -> None:
    """Wherever the cut falls: `14` of `147. item` would belong to the item before."""
    items = "".join(f"{n}. item number {n} is here\n" for n in range(2, 199))
    text = f"1. {'x' * more}\n{items}"
    assert grown(text) == in_one(text)


MINIFIED = '```json{"list":[' + '{"key":"value"},' * 2000


@pytest.mark.parametrize(
    "text",
    [MINIFIED, MINIFIED.replace("`", "~"), "`" * 9000, "~" * 9000 + "\n" + "x" * 9000,
     "```" + " " * 9000, "``` " + "x" * 9000 + "`", "\n" * 9000 + "```x"],
)  # fmt: skip
def test_a_block_that_opens_with_an_endless_line_gets_shorter_when_it_is_cut(text: str) -> None:
    while len(text) > 4000:
        head, rest, *_ = cut(text)
        assert len(rest) <= len(text) - 1900
        assert len(head) <= 4100
        text = rest


@given(st.lists(st.sampled_from(["```", "~~~", "`", "~", "{", " ", "\n", "x" * 900, "json"])))
@settings(max_examples=300, deadline=None)
def test_whatever_is_cut_gets_shorter(parts: list[str]) -> None:
    text = "".join(parts) + "y" * 4000
    assert len(cut(text)[1]) <= len(text) - 1900


HOSTILE = {
    "marks": "- " * 40 + "x " * 6000,
    "lists": "".join("  " * n + "- a\n" for n in range(40)) + "x " * 6000,
    "wide": "".join(" " * 17 * n + "   123456789.    a\n" for n in range(9)) + "x " * 6000,
    "quotes": "> " * 40 + "x " * 6000,
    "quoted": "> - " * 40 + "x " * 6000,
    "head": f"| {'a' * 190} | b |\n|{'-' * 190}|---|\n" + "| x | y |\n" * 900,
    "blanks": " " * 1000 + "x " * 6000,
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_what_opens_a_rest_again_is_short(kind: str) -> None:
    text, numbers = HOSTILE[kind], Cut("", "", joined=False).numbers
    while len(text) > 4000:
        _, rest, _, numbers = cut(text, numbers)
        assert len(rest) <= len(text) - 500
        text = rest


@pytest.mark.timed
def test_a_long_answer_that_opens_with_minified_json_is_shown_whole_in_linear_time() -> None:
    def seconds(text: str) -> float:
        started = time.thread_time()
        shown_of = GrowingMarkdown().add([Span(text, Origin.TARGET)])
        taken = time.thread_time() - started
        lines = [line.plain.strip() for blocks in shown_of for line in lay_out(blocks, 5000)]
        assert "".join(lines) == text.removeprefix("```")
        return taken

    short = min(seconds(MINIFIED) for _ in range(3))
    assert seconds(MINIFIED + '{"key":"value"},' * 6000) < 8 * short + 0.1


def test_no_two_origins_look_alike_without_their_colours() -> None:
    looks = [{word for word in STYLES[each].split() if word[0] != "$"} for each in Origin]
    assert all(one != other for one, other in combinations(looks, 2))


def test_origin_view_keeps_every_character() -> None:
    spans = [
        Span("one two", Origin.DRAFT),
        Span("\nthree", Origin.TARGET),
        Span("\n", Origin.DRAFT),
    ]
    growing, final = GrowingOrigins(), []
    for span in spans:
        more, live = growing.add([span])
        final += more
    lines = lay_out([*final, *live], 40)
    assert [line.plain for line in lines] == ["one two", "three", ""]
    assert any("underline" in str(span.style) for span in lines[0].spans)
    assert not lines[1].spans
    _, (copied,) = GrowingOrigins().add([Span("copied", Origin.LOOKUP)])
    (line,) = lay_out([copied], 40)
    assert any("italic" in str(span.style) for span in line.spans)


def test_answer_streams_the_same_lines_as_it_shows_at_once() -> None:
    whole = Answer([Span(MARKDOWN, Origin.TARGET)])
    grown = Answer()
    grown.lines(50)
    for start in range(0, len(MARKDOWN), 7):
        grown.write([Span(MARKDOWN[start : start + 7], Origin.TARGET)])
    assert [line.plain for line in grown.lines(50)] == [line.plain for line in whole.lines(50)]


def test_a_link_defined_at_the_end_is_resolved_when_the_answer_is_complete() -> None:
    answer = Answer([Span("See [this].\n\nMore.\n\n[this]: http://a.b\n", Origin.TARGET)])
    answer.finish({}, None)
    assert "See this ‹http://a.b›." in answer.lines(60)[0].plain


def test_a_question_is_shown_as_typed_and_cut_when_it_is_huge() -> None:
    lines = [line.plain.rstrip() for line in Question("**a**\n[b]").lines(30)]
    assert lines == ["▌ **a**", "▌ [b]", ""]
    assert "more characters" in Question("y " * 50_000).lines(80)[-2].plain


def test_history() -> None:
    history = InputHistory()
    assert history.older("draft") is None
    for text in ("one", "two", "two"):
        history.add(text)
    assert [history.older("draft"), history.older("two"), history.older("one")] == [
        "two", "one", None
    ]  # fmt: skip
    assert [history.newer("one"), history.newer("two"), history.newer("draft")] == [
        *("two", "draft", None)
    ]


def test_an_entry_that_was_changed_is_kept_too() -> None:
    history = InputHistory()
    for text in ("one", "two"):
        history.add(text)
    assert history.older("draft") == "two"
    assert history.older("two, changed") == "one"
    assert [history.newer("one"), history.newer("two")] == ["two", "two, changed"]
    assert history.newer("two, changed") == "draft"


def test_commands_are_found_by_their_beginning() -> None:
    assert parse("/temp 0.5", COMMANDS) == ("temp", "0.5")
    assert command_table.find("te").name == "temp"
    with pytest.raises(UsageError, match="could mean"):
        command_table.find("s")
    with pytest.raises(UsageError, match="no command"):
        command_table.find("nonsense")


def test_a_slash_begins_a_command_unless_it_begins_a_path_or_code() -> None:
    """In several lines only a command's name counts; only such a slash is doubled."""
    for command in ("/", "/temp", "/theem", "/read /tmp/x", "/system You are\na cat"):
        assert parse(command, COMMANDS) is not None
    for message in (
        "a/b",
        "/etc/hosts has what?",
        "/* a */",
        "/**",
        "//text",
        "///",
        "/usr\na",
        "/tmp/x:\n```\n/help\n```",
        "// a\nb",
        "//a\nb",
        "/*\n*/",
        "/theem\na",
    ):
        assert parse(message, COMMANDS) is None
    for text in ("/help", "//help", "/system a\nb", "//system a\nb", "///x", "/theem", "/", "//"):
        typed = as_typed(text, COMMANDS)
        assert typed == f"/{text}"
        assert message_text(typed, COMMANDS) == text
    assert as_typed(" /help", COMMANDS) == "//help"  # the input takes blanks away
    for text in ("a", "", "/a/b", "//a\nb", "/* a"):
        assert as_typed(text, COMMANDS) == message_text(text, COMMANDS) == text


def test_commands_have_names_and_keys_of_their_own() -> None:
    names = [command.name for command in command_table.COMMANDS]
    keys = [key for command in command_table.COMMANDS for key in command.keys.split(",") if key]
    assert len(set(names)) == len(names)
    assert len(set(keys)) == len(keys)
    assert {"help", "system", "gamma", "temp", "clear", "quit", "regen", "copy", "speculation"} <= {
        *names
    }


def luminance(colour: Color) -> float:
    """As WCAG 2.1 has it."""
    parts = [value / 255 for value in colour.rgb]
    linear = [v / 12.92 if v <= 0.03928 else ((v + 0.055) / 1.055) ** 2.4 for v in parts]
    return sum(weight * v for weight, v in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize("theme", ["textual-dark", "textual-light"])
def test_muted_text_can_be_read(theme: str) -> None:
    """WCAG's 4.5 to 1 for text, 3 to 1 for marks; what is fainter is decoration."""
    colours = BUILTIN_THEMES[theme].to_color_system().generate()
    sources = {path.name: path.read_text("utf-8") for path in UI.rglob("*.py")}
    assert "items.py" in sources
    for name, source in sources.items():
        for share in map(int, re.findall(r"(?<!on )\$foreground (\d+)%", source)):
            if share < 50:
                assert name in ("drawing.py", "memory.py", "blocks.py"), (name, share)
            for ground in ("background", "surface"):
                behind, front = Color.parse(colours[ground]), Color.parse(colours["foreground"])
                both = luminance(behind), luminance(behind.blend(front, share / 100))
                contrast = (max(both) + 0.05) / (min(both) + 0.05)
                assert share < 50 or contrast > (3 if share < 60 else 4.4), (name, share)


def test_a_long_answer_does_not_vanish_when_it_ends() -> None:
    answer = Answer()
    answer.lines(80)
    for number in range(200):
        answer.write([Span(f"Paragraph {number}.\n\n", Origin.TARGET)])
    before = len(answer.shown)
    assert before > 300
    answer.finish({}, None)
    assert len(answer.lines_so_far(80)) == before
    assert "broken off" in answer.lines(80)[-2].plain


def test_a_long_question_is_laid_out_in_steps_and_whole() -> None:
    text = "\n".join(f"Line {number} of what was asked." for number in range(600))
    item = Question(text, opened=True)
    steps = 0
    while item.advance(80):
        steps += 1
    assert steps > 5
    assert [line.plain[2:].rstrip() for line in item.lines(80)[:-1]] == text.split("\n")


def test_code_is_broken_between_words_and_inside_one_that_is_too_long() -> None:
    line = "    result = compute_something(first_argument, second_argument, third_argument)"
    lines = [one.plain.strip() for one in lay_out([Block(CodeBlock((Content(line),)))], 42)]
    assert lines == [
        "result =", "compute_something(first_argument,", "second_argument, third_argument)",
    ]  # fmt: skip
    word = lay_out([Block(CodeBlock((Content("x" * 99),)))], 42)
    assert "".join(one.plain.strip() for one in word) == "x" * 99
    wide = "漢字 " * 30
    shown = lay_out([Block(CodeBlock((Content(wide),)))], 20)
    assert all(one.cell_length == 20 for one in shown)
    assert "".join(one.plain for one in shown).replace(" ", "") == wide.replace(" ", "")


@pytest.mark.parametrize("limit", [1, 2, 9, 10, 40, 79])
@pytest.mark.parametrize(
    "text", ["a" * 100, "你好，世界" * 20, "ab你" * 30, "e\u0301" * 120, "❤️" * 60]
)
def test_a_shortened_line_fits_in_its_cells(text: str, limit: int) -> None:
    line = shortened(text, limit)
    assert limit - 2 <= cell_len(line) <= limit
    assert "…" in line
    assert not line.partition("…")[2].startswith("\u0301")
    assert shortened("abcdefgh", 5, end=4) == "…efgh"
    assert shortened("你好", 4) == "你好"


def test_the_line_of_a_file_is_as_wide_as_the_list() -> None:
    file = FileProgress("模型/" + "大语言模型" * 12 + ".gguf", "", "fetching", 1, 2, 1)
    assert pair_lines._file_line(file, 60).cell_length == 60
