"""The vocabulary check: llama.cpp's rules, with the place where they fail."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from localspec.errors import VocabularyMismatch
from localspec.pairs.gguf import header as gguf
from localspec.pairs.gguf.header import GgufHeader
from localspec.pairs.report import vocabulary
from tests.support import ggufs
from tests.support.gguf_models import write_renumbered

BOS, EOS = "tokenizer.ggml.bos_token_id", "tokenizer.ggml.eos_token_id"
ADD_BOS, ADD_EOS = "tokenizer.ggml.add_bos_token", "tokenizer.ggml.add_eos_token"


def header(tokens: Any = None, tokenizer: str = "gpt2", **extra: Any) -> GgufHeader:
    """A header; `extra` maps short names to the metadata of the tokenizer."""
    kinds = {bool: ggufs.BOOL, int: ggufs.U32, str: ggufs.STRING}
    names = {"bos": BOS, "eos": EOS, "add_bos": ADD_BOS, "add_eos": ADD_EOS}
    names["pre"] = "tokenizer.ggml.pre"
    more = [(names[key], kinds[type(value)], value) for key, value in extra.items()]
    data = ggufs.model(tokens, tokenizer=tokenizer, extra=more)
    return gguf.parse_header(lambda at, size: data[at : at + size], len(data), "it")


def test_the_same_vocabulary_matches() -> None:
    report = vocabulary.check(header(), header())
    assert report.compatible
    assert report.rule == ""
    assert report.reason == "the same 300 tokens"


def test_a_small_difference_in_size_is_allowed() -> None:
    report = vocabulary.compare(header(ggufs.words(428)), header(ggufs.words(300)))
    assert report.compatible
    assert "target 428, draft 300" in report.reason
    report = vocabulary.compare(header(ggufs.words(429)), header(ggufs.words(300)))
    assert report.rule == "size"
    assert "300 tokens and the target 429" in report.reason


def test_the_first_difference_is_named() -> None:
    odd = ggufs.words(300)
    odd[200], odd[250] = "\n\u00e9", "later"
    with pytest.raises(VocabularyMismatch) as caught:
        vocabulary.check(header(), header(odd))
    assert r"token 200 is '\n" in caught.value.message
    assert "in the target 'word200'" in caught.value.message
    assert vocabulary.compare(header(), header(odd)).token == 200


def test_the_first_five_tokens_may_differ() -> None:
    assert vocabulary.compare(header(), header(ggufs.words(300, list("abcde")))).compatible
    assert not vocabulary.compare(header(), header(ggufs.words(300, list("abcdef")))).compatible


def test_every_failure_names_a_token_where_texts_differ() -> None:
    odd = ggufs.words(300, ["x"] * 7)
    for draft in (header(odd, add_bos=True), header(odd, "llama"), header(ggufs.words(9, odd[:7]))):
        report = vocabulary.compare(header(), draft)
        assert report.rule in ("bos", "type", "size")
        assert report.token == 5
        assert "token 5 is 'x', in the target 'word5'" in report.reason


@pytest.mark.parametrize(
    ("target", "draft", "rule"),
    [
        ({"add_bos": True, "bos": 1}, {"add_bos": True, "bos": 1}, ""),
        ({"add_bos": True, "bos": 1}, {"add_bos": True, "bos": 2}, "bos"),
        ({"add_bos": True, "bos": 1}, {"bos": 1}, "bos"),
        ({"bos": 1}, {"bos": 2}, ""),  # never added, so it does not matter
        ({"add_eos": True, "eos": 1}, {"add_eos": True, "eos": 2}, "eos"),
        ({"add_eos": True, "eos": 1}, {}, "eos"),
        ({"eos": 1}, {"eos": 2}, ""),
        ({"add_bos": True}, {"add_bos": True, "bos": 11}, ""),  # the default id
        ({"add_bos": True, "bos": 999}, {"add_bos": True, "bos": 11}, ""),  # out of range
        ({"pre": "llama-bpe", "bos": 1}, {"add_bos": True, "bos": 1}, ""),
        ({"pre": "llama-bpe", "bos": 1, "add_bos": False}, {"bos": 1}, ""),
        ({"pre": "gemma4", "add_bos": False, "bos": 1}, {"add_bos": True, "bos": 1}, ""),
        ({"pre": "glm4", "add_bos": True}, {"add_bos": True}, "bos"),
    ],
)
def test_special_tokens(target: dict[str, Any], draft: dict[str, Any], rule: str) -> None:
    report = vocabulary.compare(header(**target), header(**draft))
    assert report.rule == rule, report.reason


def test_special_tokens_are_named_with_their_text() -> None:
    report = vocabulary.compare(header(), header(add_bos=True, bos=7))
    assert report.reason == (
        "it adds token 7 ('word7') where a text begins, the target adds no token"
    )


@pytest.mark.parametrize(
    ("tokenizer", "expected"),
    [
        ("gpt2", ("BPE", False, 11, False, 11)),
        ("llama", ("SPM", True, 1, False, 2)),
        ("bert", ("WPM", True, 101, False, None)),
        ("t5", ("UGM", False, None, True, 1)),
        ("rwkv", ("RWKV", False, None, False, None)),
        ("plamo2", ("PLAMO2", False, 1, False, 2)),
        ("gemma4", ("BPE", True, None, False, None)),
        ("other", ("unknown tokenizer 'other'", False, None, False, None)),
    ],
)
def test_defaults(tokenizer: str, expected: tuple[Any, ...]) -> None:
    found = vocabulary.vocabulary(header(tokenizer=tokenizer))
    assert (found.kind, found.add_bos, found.bos, found.add_eos, found.eos) == expected


def test_defaults_that_are_out_of_range_are_none() -> None:
    found = vocabulary.vocabulary(header(ggufs.words(2), "llama"))
    assert (found.bos, found.eos) == (1, None)


def test_empty_tokens_and_nul_compare_as_in_llama_cpp() -> None:
    empty, named = ggufs.words(20), ggufs.words(20)
    empty[7], named[7] = "", "[EMPTY_7]"
    assert vocabulary.compare(header(empty), header(named)).compatible
    tail, other = ggufs.words(20), ggufs.words(20)
    tail[7], other[7] = "a\0b", "a\0c"
    assert vocabulary.compare(header(tail), header(other)).compatible


def test_a_file_without_a_vocabulary_matches_nothing() -> None:
    data = ggufs.header([("general.architecture", ggufs.STRING, "llama")])
    bare = gguf.parse_header(lambda at, size: data[at : at + size], len(data), "it")
    report = vocabulary.compare(bare, bare)
    assert not report.compatible
    assert "holds no vocabulary" in report.reason
    assert not vocabulary.compare(header(), bare).compatible


def test_texts_are_printable() -> None:
    assert vocabulary.printable(b"a\x1b[31m") == r"'a\x1b[31m'"
    assert vocabulary.printable(b"\xff") == r"'\\xff'"
    assert len(vocabulary.printable(b"x" * 500)) == 60


def test_the_toy_pair_matches(toy_target: Path, toy_draft: Path) -> None:
    report = vocabulary.check(gguf.read_header(toy_target), gguf.read_header(toy_draft))
    assert report.target_size == report.draft_size


# ---------------------------------------------------------------- through the text


def test_the_share_of_a_text_that_both_spell_alike(tmp_path: Path, toy_target: Path) -> None:
    target = gguf.read_header(toy_target)
    shares = []
    for fewer in (0, 3000):
        path = write_renumbered(tmp_path / f"{fewer}.gguf", fewer=fewer)
        report = vocabulary.check(target, gguf.read_header(path))
        assert not report.compatible
        assert report.usable
        shares.append(report.alike)
    assert 1 == shares[0] > shares[1] > 0
    assert vocabulary.compare(target, target).alike is None


def test_a_vocabulary_that_cannot_write_is_no_use() -> None:
    report = vocabulary.compare(header(), header(ggufs.words(300, list("abcdef"))))
    assert report.alike is None
    assert not report.usable


def test_both_ways_of_writing_a_space_are_known(toy_target: Path) -> None:
    """GPT-2's letter and SentencePiece's block, and a line's end by its number."""
    target = gguf.read_header(toy_target)
    texts = [bytes(text).decode() for text in target.tokens or ()]
    blocks = [text.replace("\u0120", "\u2581").replace("\u010a", "\n") for text in texts]
    blocks[texts.index("\u010a")] = "<0x0A>"
    other = header(blocks, "llama")
    assert vocabulary.compare(target, other).alike == 1
