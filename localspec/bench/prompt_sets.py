"""The request for a bench, and its prompts: sets that come with localspec, or a user's own."""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any, Final

from localspec import formats
from localspec.chat.settings import ChatSettings, Gamma
from localspec.drafter_names import LOOKUP
from localspec.engine.round.params import SamplingParams
from localspec.errors import LocalspecError, UsageError
from localspec.pairs.disk import folders
from localspec.safe_text import decoded, save_as_utf8

GENERAL, QUICK = "general", "quick"
_SETS = Path(__file__).parent / "sets"
OWN_KIND = "own"
_MOST_BYTES = 64_000_000
_MOST_KIND = 24  # characters: the width of a column of the report


QUICK_S: Final = 240.0
"""Seconds of a quick bench at most."""

TOKENS: Final = 128
"""Tokens of an answer at most, unless others are asked for."""

_COPIED = ("edit", "conversion", "chat")
_WRITTEN = ("chat", "code", "edit")
"""The kinds of a quick bench where lookup alone drafts, and where a model does: what these are for,
and what they do elsewhere."""


@dataclass(frozen=True, slots=True)
class BenchPrompt:
    """One question.

    Attributes:
        name: its name in the report, which reveals nothing of the text.
        kind: the kind of text that it asks for.
    """

    name: str
    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class PromptSet:
    """A set of questions.

    Attributes:
        prompts: in the order of asking: one of each kind, then the next of each.
        ignore_end: whether answers continue past their end, as they would be too short to time.
    """

    name: str
    prompts: tuple[BenchPrompt, ...]
    ignore_end: bool = False

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds, in order of appearance."""
        return tuple(dict.fromkeys(prompt.kind for prompt in self.prompts))

    @property
    def digest(self) -> str:
        """A hash of all questions, since sets of the same name may differ."""
        texts = sorted((prompt.name, prompt.kind, prompt.text) for prompt in self.prompts)
        return hashlib.sha256(json.dumps(texts).encode()).hexdigest()[:16]

    def only(self, kinds: Sequence[str]) -> PromptSet:
        """The questions of these kinds.

        Raises:
            UsageError: the set has no such kind.
        """
        unknown = [kind for kind in kinds if kind not in self.kinds]
        if unknown:
            raise UsageError(
                f"there is no kind {unknown[0]!r} among these prompts",
                f"Choose from {', '.join(self.kinds)}.",
            )
        chosen = tuple(prompt for prompt in self.prompts if prompt.kind in kinds)
        return PromptSet(self.name, chosen, self.ignore_end)


def drafters_of(name: str) -> str:
    """Convert one of ``--drafts`` to ``--draft``: its + becomes a comma between drafters."""
    return name if folders.is_file(Path(name)) else name.replace("+", ",")


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchRequest:
    """What a bench measures.

    Attributes:
        n_predict: the most tokens of an answer.
        temperature: 0 for greedy.
        seed: of the first repeat.
        gamma: of the settings that draft.
        drafts: several drafts for the target, each as `drafters_of` reads it; empty for the
            pair's.
        sweep: more draft lengths to run.
        deadline: of a quick bench, in seconds of `perf_counter`, which all processes share; None
            for a bench that asks everything.
        shared: whether others are to have the result: a disturbed machine ends it early.
    """

    prompts: PromptSet
    repeats: int
    n_predict: int
    temperature: float
    seed: int
    gamma: Gamma
    drafts: tuple[str, ...] = ()
    sweep: tuple[int, ...] = ()
    deadline: float | None = None
    shared: bool = False

    @property
    def quick(self) -> bool:
        """Whether it ends as soon as there is an answer for each kind."""
        return self.deadline is not None

    def settings(self, end_tokens: frozenset[int]) -> ChatSettings:
        """The settings that every arm shares, with a seed, so that off and on draw the same."""
        bias = dict.fromkeys(end_tokens, float("-inf")) if self.prompts.ignore_end else {}
        sampling = SamplingParams(temperature=self.temperature, seed=self.seed, logit_bias=bias)
        return ChatSettings(sampling=sampling, n_predict=self.n_predict, repeatable=True)

    def document(self) -> dict[str, Any]:
        """The request for a report: plain values, the prompts by name and hash."""
        prompts = self.prompts
        return {
            "prompts": prompts.name,
            "prompts_sha256": prompts.digest,
            "kinds": list(prompts.kinds),
            "repeats": self.repeats,
            "n_predict": self.n_predict,
            "temp": self.temperature,
            "seed": self.seed,
            "gamma": self.gamma,
            "gamma_sweep": list(self.sweep),
            "ignore_eos": prompts.ignore_end,
            "quick": self.quick,
        }


def shipped(name: str) -> PromptSet:
    """Read a set that comes with localspec."""
    document = tomllib.loads((_SETS / f"{name}.toml").read_text("utf-8"))
    texts: dict[str, str] = document.get("texts", {})
    found = {
        kind: [_text(entry, texts) for entry in entries]
        for kind, entries in document["prompts"].items()
    }
    return _numbered(name, found)


def quick(kinds: Sequence[str] = ()) -> PromptSet:
    """The questions of a quick bench of any drafter.

    Questions of the usual kinds have at most 1,000 characters.

    Args:
        kinds: only these, whatever drafts; of kinds that it lacks the general questions, however
            long they are.

    Raises:
        UsageError: a kind does not exist.
    """
    own, texts = shipped(QUICK), dict[str, list[str]]()
    more = (prompt for prompt in shipped(GENERAL).prompts if prompt.kind != "edit")  # long ones
    for prompt in (*own.prompts, *more):
        texts.setdefault(prompt.kind, []).append(prompt.text)
    whole = _numbered(QUICK, texts)
    return replace(whole.only(kinds), name=f"{QUICK}, by kind") if kinds else whole.only(own.kinds)


def for_drafters(prompts: PromptSet, drafters: Iterable[str]) -> PromptSet:
    """Of the questions of `quick` those of the kinds that tell most of these drafters."""
    if prompts.name != QUICK:
        return prompts
    wanted = _COPIED if set(drafters) <= {LOOKUP} else _WRITTEN
    kinds = tuple(kind for kind in wanted if kind in prompts.kinds)
    return prompts.only(kinds) if kinds else prompts


def _text(entry: str | dict[str, Any], texts: dict[str, str]) -> str:
    """A question, followed by the texts that it refers to."""
    if isinstance(entry, str):
        return entry.strip()
    about = "\n\n".join(texts[name].strip() for name in entry["about"])
    return f"{entry['ask'].strip()}\n\n{about}"


def _numbered(name: str, texts: Mapping[str, Sequence[str]]) -> PromptSet:
    """The set of these texts by kind, each named by its kind and a number."""
    kinds = [
        [BenchPrompt(f"{kind}-{number}", kind, text) for number, text in enumerate(each, 1)]
        for kind, each in texts.items()
    ]
    return PromptSet(name, _in_turn(kinds))


def _in_turn(kinds: Iterable[Sequence[BenchPrompt]]) -> tuple[BenchPrompt, ...]:
    """The first of every kind, then the second: a run that is stopped early has seen all kinds."""
    return tuple(prompt for prompt in chain.from_iterable(zip_longest(*kinds)) if prompt)


def read(path: Path) -> PromptSet:
    """Read a file of JSON lines: ``{"prompt": "...", "kind": "..."}``; the kind is optional.

    Raises:
        LocalspecError: it cannot be read, is empty, or has a malformed line.
    """
    try:
        with path.open("rb") as file:  # a pipe is fine, an endless one is not
            content = file.read(_MOST_BYTES + 1)
        if len(content) > _MOST_BYTES:
            raise LocalspecError(
                f"{path} is larger than {formats.size(_MOST_BYTES)}", "Use fewer prompts."
            )
        lines = decoded(content).split("\n")
    except OSError as error:
        raise LocalspecError(
            f"cannot read the prompts in {path}: {error.strerror}", "Choose another file."
        ) from None
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise LocalspecError(f"line {line} of {path} is not UTF-8", save_as_utf8()) from None
    found = [_parsed(line, n, path) for n, line in enumerate(lines, 1) if line.strip()]
    if not found:
        raise LocalspecError(
            f"there are no prompts in {path}", 'Write one to a line: {"prompt": "..."}.'
        )
    kinds = dict.fromkeys(prompt.kind for prompt in found)
    return PromptSet("own file", _in_turn([[p for p in found if p.kind == k] for k in kinds]))


def _parsed(line: str, number: int, path: Path) -> BenchPrompt:
    """Parse one line of a file of prompts."""

    def wrong(what: str) -> LocalspecError:
        return LocalspecError(
            f"line {number} of {path} {what}",
            'Every line is an object such as {"prompt": "...", "kind": "code"}.',
        )

    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        raise wrong("is not JSON") from None
    if not isinstance(entry, dict):
        raise wrong("is not an object")
    unknown = sorted(entry.keys() - {"prompt", "kind"})
    if unknown:
        raise wrong(f"has an unknown field {unknown[0]!r}")
    text, kind = entry.get("prompt"), entry.get("kind", OWN_KIND)
    if not isinstance(text, str) or not text.strip():
        raise wrong("has no prompt")
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise wrong("has half a character (a surrogate)")
    if not isinstance(kind, str) or not 0 < len(kind.strip()) <= _MOST_KIND:
        raise wrong(f"has a kind that is not a text of 1 to {_MOST_KIND} characters")
    if not kind.isprintable() or kind.strip() == "all":
        raise wrong("has a kind that cannot be shown")
    return BenchPrompt(f"line-{number}", kind.strip(), text)
