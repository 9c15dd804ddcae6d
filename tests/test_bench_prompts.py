"""Prompts: the sets that ship, and users' files."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from localspec.bench.prompt_sets import GENERAL, OWN_KIND, for_drafters, quick, read, shipped
from localspec.errors import LocalspecError, UsageError


def test_the_set_has_nine_kinds_with_six_prompts_at_least() -> None:
    prompts = shipped(GENERAL).prompts
    counts = Counter(prompt.kind for prompt in prompts)
    assert len(counts) == 9
    assert min(counts.values()) >= 6
    assert len({prompt.text for prompt in prompts}) == len(prompts)
    assert len({prompt.name for prompt in prompts}) == len(prompts)


def test_every_kind_comes_once_before_any_comes_twice() -> None:
    prompts = shipped(GENERAL).prompts
    assert len({prompt.kind for prompt in prompts[:9]}) == 9
    assert len({prompt.kind for prompt in prompts[9:18]}) == 9


def test_some_contexts_are_long_and_the_question_stands_above_them() -> None:
    long = [prompt for prompt in shipped(GENERAL).prompts if len(prompt.text) > 6000]
    assert len(long) >= 2
    assert all("\n\n" in prompt.text for prompt in long)


@pytest.mark.parametrize(
    ("drafters", "kinds"),
    [
        (("lookup",), ("edit", "conversion", "chat")),
        (("draft-1M", "lookup"), ("edit", "chat", "code")),
        (("mtp",), ("edit", "chat", "code")),
    ],
)
def test_a_quick_bench_asks_questions_that_its_drafters_are_for(
    drafters: tuple[str, ...], kinds: tuple[str, ...]
) -> None:
    chosen = for_drafters(quick(), drafters)
    assert chosen.kinds == kinds
    assert [prompt.kind for prompt in chosen.prompts[:6]] == [*kinds, *kinds]
    assert len({prompt.name for prompt in chosen.prompts}) == len(chosen.prompts) == 64
    assert max(len(prompt.text) for prompt in chosen.prompts) < 1000
    assert for_drafters(shipped(GENERAL), drafters) == shipped(GENERAL)


def test_chosen_kinds_of_a_quick_bench_are_asked_whatever_drafts() -> None:
    """They are the questions that it asks anyway, and the general ones of all other kinds."""
    chosen = for_drafters(quick(("conversion", "edit", "story")), ["draft-1M"])
    counts = Counter(prompt.kind for prompt in chosen.prompts)
    assert counts == {"edit": 16, "conversion": 16, "story": 7}
    own = {prompt.text for prompt in quick().prompts}
    assert own > {prompt.text for prompt in chosen.prompts if prompt.kind != "story"}
    with pytest.raises(UsageError, match="'poem'"):
        quick(("edit", "poem"))


def test_kinds_can_be_chosen_and_unknown_ones_are_named() -> None:
    chosen = shipped(GENERAL).only(["story", "chat"])
    assert chosen.kinds == ("chat", "story")
    with pytest.raises(UsageError, match="'poem'") as caught:
        shipped(GENERAL).only(["story", "poem"])
    assert "story" in caught.value.remedy


def test_a_file_of_json_lines(tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    path.write_text(
        '\ufeff{"prompt": "Hello", "kind": "greeting"}\n\n{"prompt": "Zwölf\\nZeilen"}\n', "utf-8"
    )
    found = read(path)
    assert [(p.name, p.kind, p.text) for p in found.prompts] == [
        ("line-1", "greeting", "Hello"),
        ("line-3", "own", "Zwölf\nZeilen"),
    ]
    assert not found.ignore_end


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "there are no prompts"),
        (b"\n  \n", "there are no prompts"),
        (b'{"prompt": "a"}\n{"prompt": \n', "line 2 .* is not JSON"),
        (b'{"prompt": "a"}\n\n["b"]\n', "line 3 .* is not an object"),
        (b'{"kind": "a"}\n', "line 1 .* has no prompt"),
        (b'{"prompt": " "}\n', "line 1 .* has no prompt"),
        (b'{"prompt": 3}\n', "line 1 .* has no prompt"),
        (b'{"prompt": "a", "kin": "b"}\n', "line 1 .* unknown field 'kin'"),
        (b'{"prompt": "a", "kind": ""}\n', "line 1 .* has a kind"),
        (b'{"prompt": "a", "kind": "\\u001b[2J"}\n', "line 1 .* cannot be shown"),
        (b'{"prompt": "a", "kind": "all"}\n', "line 1 .* cannot be shown"),
        (b"[" * 100_000 + b"\n", "line 1 .* is not JSON"),
        (b'{"prompt": "a"}\n{"prompt": "\xff"}\n', "line 2 .* is not UTF-8"),
    ],
)
def test_what_is_wrong_with_a_file_is_said_with_its_line(
    tmp_path: Path, content: bytes, said: str
) -> None:
    path = tmp_path / "own.jsonl"
    path.write_bytes(content)
    with pytest.raises(LocalspecError, match=said) as caught:
        read(path)
    assert caught.value.remedy


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(LocalspecError, match="No such file"):
        read(tmp_path / "none.jsonl")


def test_sets_are_told_apart_by_their_texts(tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    digests = set()
    for text in ("a", "b"):
        path.write_text(json.dumps({"prompt": text}))
        digests.add(read(path).digest)
    assert len(digests) == 2
    path.write_text(json.dumps({"prompt": "b", "kind": OWN_KIND}))
    assert read(path).digest in digests
    assert shipped(GENERAL).digest != shipped(GENERAL).only(["chat"]).digest
