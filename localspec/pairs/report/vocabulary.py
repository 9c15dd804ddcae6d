"""Whether a draft has the target's vocabulary: llama.cpp's five rules, on two headers.

A draft with another vocabulary can still serve by way of the text; then it counts how much of a
text both spell alike (see `spelling`).

The rules are those of `common_speculative_are_compatible` (llama.cpp, common/speculative.cpp), and
missing values are replaced by llama.cpp's defaults (llama-vocab.cpp). llama.cpp only reports *that*
a rule failed; this module names the rule and the first difference.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from localspec.errors import VocabularyMismatch
from localspec.pairs.gguf.cursor import StringArray
from localspec.pairs.gguf.header import TOKENS_KEY, GgufHeader, SeesKey, Value
from localspec.pairs.report import spelling

MAX_SIZE_DIFFERENCE: Final = 128  # SPEC_VOCAB_MAX_SIZE_DIFFERENCE
_MODEL_KEY: Final = "tokenizer.ggml.model"
FIRST_CHECKED_ID: Final = 5  # SPEC_VOCAB_CHECK_START_TOKEN_ID

# tokenizer.ggml.model -> defaults: (type, BOS id, EOS id, add BOS, add EOS).
_KINDS: Final = {
    "no_vocab": ("none", None, None, False, False),
    "none": ("none", None, None, False, False),
    "llama": ("SPM", 1, 2, True, False),
    "bert": ("WPM", 101, None, True, False),
    "gpt2": ("BPE", 11, 11, False, False),
    "hybriddna": ("BPE", 11, 11, False, False),
    "whitespace": ("BPE", 11, 11, False, False),
    "gemma4": ("BPE", None, None, True, False),
    "t5": ("UGM", None, 1, False, True),
    "rwkv": ("RWKV", None, None, False, False),
    "test": ("TEST", None, None, False, False),
    "plamo2": ("PLAMO2", 1, 2, False, False),
}
# BPE pre-tokenizers that add BOS unless the file says otherwise.
_ADD_BOS_PRE: Final = frozenset(
    {
        *("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0"),
        *("lfm2", "jina-v5-nano", "tekken", "chameleon"),
    }
)
_ALWAYS_BOS_PRE: Final = frozenset({"gemma4", "granite-embed-multi-311m"})
_NO_BOS_ID_PRE: Final = frozenset({"chatglm-bpe", "glm4", "glm5"})


_Failure = tuple[str, str, int | None]
"""The first rule that fails, its reason, and the token; ``("", "", None)`` if all pass."""


@dataclass(frozen=True, slots=True)
class HeaderVocabulary:
    """A model's vocabulary as llama.cpp would see it; missing ids are None."""

    kind: str
    size: int
    add_bos: bool = False
    bos: int | None = None
    add_eos: bool = False
    eos: int | None = None
    tokens: StringArray | None = None


@dataclass(frozen=True, slots=True)
class VocabularyReport:
    """The comparison of a target's vocabulary with a draft's.

    Attributes:
        compatible: whether the tokens are the same, as llama.cpp requires of a draft.
        rule: the rule that failed (``type``, ``bos``, ``eos``, ``size`` or ``text``), else empty.
        reason: one line for people: what differs, or that nothing does.
        token: the first id whose texts differ, if that rule failed.
        alike: for different vocabularies, the share of a text's tokens that both spell alike, 0 to
            1; None if it is not needed or one of them cannot write the text.
    """

    compatible: bool
    rule: str
    reason: str
    token: int | None
    target_size: int
    draft_size: int
    alike: float | None = None

    @property
    def usable(self) -> bool:
        """Whether the draft can serve the target, if need be by way of the text."""
        return self.compatible or self.alike is not None


def check(target: GgufHeader, draft: GgufHeader, *, same: bool = False) -> VocabularyReport:
    """Compare both vocabularies and check that the draft can serve the target.

    Args:
        target: the target's header.
        draft: the draft's header.
        same: require the same tokens, as for a head, which shares the target's.

    Raises:
        VocabularyMismatch: it cannot, not even by way of the text; the message names the rule and
            the first difference.
    """
    report = compare(target, draft)
    if not (report.compatible if same else report.usable):
        raise VocabularyMismatch(
            f"this draft cannot serve this target: {report.reason}",
            "Choose a draft of the same model family, or go without one (`--draft none`).",
        )
    return report


def compare(target: GgufHeader, draft: GgufHeader) -> VocabularyReport:
    """Compare both vocabularies without raising."""
    ours, theirs = vocabulary(target), vocabulary(draft)
    rule, reason, token = _first_failure(ours, theirs)
    if not rule and ours.size == theirs.size:
        reason = f"the same {ours.size:,} tokens"
    elif not rule:
        sizes = f"target {ours.size:,}, draft {theirs.size:,}"
        reason = f"the same tokens where both have them ({sizes})"
    alike = spelling.alike(target, draft) if rule else None
    return VocabularyReport(not rule, rule, reason, token, ours.size, theirs.size, alike)


def require_like(target: GgufHeader) -> SeesKey:
    """Make a check that stops reading a draft's header once it cannot fit `target`.

    A header that passes must still go through `check`: settings after the tokens count too.
    """
    ours = vocabulary(target)

    def accept(key: str, metadata: Mapping[str, Value]) -> None:
        if key not in (_MODEL_KEY, TOKENS_KEY):
            return
        theirs = vocabulary(GgufHeader(metadata))
        if ours.kind != theirs.kind or key == TOKENS_KEY:
            rule, reason, _ = _first_failure(ours, theirs, special=False)
            if rule:
                raise VocabularyMismatch(reason)

    return accept


def vocabulary(header: GgufHeader) -> HeaderVocabulary:
    """The vocabulary settings of `header`, with llama.cpp's defaults."""
    model = header.text(_MODEL_KEY)
    pre = "gemma4" if model == "gemma4" else header.text("tokenizer.ggml.pre")
    kind, bos, eos, add_bos, add_eos = _KINDS.get(
        model, (f"unknown tokenizer {model[:40]!r}", None, None, False, False)
    )
    tokens = header.tokens
    if kind == "none":
        return HeaderVocabulary(kind, size=header.setting("vocab_size"))
    if kind == "BPE":
        add_bos = add_bos or pre in _ADD_BOS_PRE
        bos = None if pre in _NO_BOS_ID_PRE else bos
    size = len(tokens) if tokens is not None else 0
    return HeaderVocabulary(
        kind=kind,
        size=size,
        add_bos=_flag(header, "tokenizer.ggml.add_bos_token", add_bos)
        or (kind == "BPE" and pre in _ALWAYS_BOS_PRE),
        bos=_special(header, "tokenizer.ggml.bos_token_id", bos, size),
        add_eos=_flag(header, "tokenizer.ggml.add_eos_token", add_eos),
        eos=_special(header, "tokenizer.ggml.eos_token_id", eos, size),
        tokens=tokens,
    )


def texts(tokens: StringArray) -> list[bytes]:
    """Every token's text as in llama.cpp: up to the first NUL, never empty."""
    found = list(tokens)
    if b"\0" in b"".join(found) or b"" in found:
        return [_text(tokens, token) for token in range(len(found))]
    return found


def printable(text: bytes) -> str:
    """A token's text for a message: quoted, escaped, and shortened."""
    shown = repr(text.decode("utf-8", "backslashreplace"))
    return shown if len(shown) <= 60 else shown[:56] + "...'"


def _flag(header: GgufHeader, key: str, default: bool) -> bool:
    value = header.metadata.get(key)
    return value if isinstance(value, bool) else default


def _special(header: GgufHeader, key: str, default: int | None, size: int) -> int | None:
    """A special token's id: the file's if in range, else the default if in range."""
    value = header.metadata.get(key)
    if isinstance(value, int) and 0 <= value < size:
        return value
    return default if default is not None and default < size else None


def _first_failure(
    target: HeaderVocabulary, draft: HeaderVocabulary, *, special: bool = True
) -> _Failure:
    """Apply the rules in llama.cpp's order; skip those of special tokens unless `special`.

    If another rule fails, the first text that differs is reported as well.
    """
    rules = [*_different_settings(target, draft, special=special)]
    text, token = "", None
    if target.tokens is not None and draft.tokens is not None:
        text, token = _different_text(target.tokens, draft.tokens)
        if abs(target.size - draft.size) > MAX_SIZE_DIFFERENCE:
            sizes = f"it has {draft.size:,} tokens and the target {target.size:,}"
            rules.append(("size", f"{sizes}: they may differ by {MAX_SIZE_DIFFERENCE} at most"))
    elif not rules:
        missing = "target" if target.tokens is None else "draft"
        rules.append(("text", f"the {missing}'s file holds no vocabulary"))
    if not rules:
        return "text" if text else "", text, token
    rule, reason = rules[0]
    return rule, f"{reason}; {text}" if text else reason, token


def _different_settings(
    target: HeaderVocabulary, draft: HeaderVocabulary, *, special: bool
) -> Iterator[tuple[str, str]]:
    """The rules that fail among the first three, each with the reason."""
    if target.kind != draft.kind:
        yield "type", f"its tokenizer is of type {draft.kind}, the target's {target.kind}"
    for rule, where, ours, theirs in (
        ("bos", "begins", (target.add_bos, target.bos), (draft.add_bos, draft.bos)),
        ("eos", "ends", (target.add_eos, target.eos), (draft.add_eos, draft.eos)),
    ):
        if special and (ours[0] != theirs[0] or (ours[0] and ours[1] != theirs[1])):
            theirs_said, ours_said = _habit(draft, theirs), _habit(target, ours)
            yield rule, f"it {theirs_said} where a text {where}, the target {ours_said}"


def _habit(model: HeaderVocabulary, special: tuple[bool, int | None]) -> str:
    added, token = special
    if not added:
        return "adds no token"
    text = ""
    if token is not None and model.tokens is not None:
        text = f" ({printable(_text(model.tokens, token))})"
    return f"adds token {token}{text}"


def _different_text(target: StringArray, draft: StringArray) -> tuple[str, int | None]:
    """The first of the checked texts that differs, if any."""
    end = min(len(target), len(draft))
    if not target.same(draft, FIRST_CHECKED_ID, end):
        for token in range(FIRST_CHECKED_ID, end):
            ours, theirs = _text(target, token), _text(draft, token)
            if ours != theirs:
                shown = f"token {token} is {printable(theirs)}, in the target {printable(ours)}"
                return shown, token
    return "", None


def _text(tokens: StringArray, token: int) -> bytes:
    """A token's text as llama.cpp compares it: up to the first NUL, never empty."""
    return (tokens[token] or b"[EMPTY_%d]" % token).split(b"\0", 1)[0]
