"""Stand-ins for the engine's rooms in tests of chat: a small tokeniser and scripted rounds."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from localspec.chat.dialects.learning.learner import learnt
from localspec.chat.prompt.renderer import RenderBudget, TemplateRenderer
from localspec.chat.session.pair import LoadedPair, LoadRecord
from localspec.chat.session.session import Session
from localspec.chat.settings import ChatSettings
from localspec.drafter_names import DRAFT
from localspec.engine.cancel import Cancel
from localspec.engine.length.gamma import AutoGamma, FixedGamma
from localspec.engine.length.stopping import Plan, Situation
from localspec.engine.llama import Model
from localspec.engine.record.stats import FinishReason, Prefill, Round
from localspec.engine.round.prompt_steps import PromptSteps
from localspec.errors import Cancelled

BOS, EOS, START, END = 256, 257, 258, 259
SPECIALS = {BOS: "<s>", EOS: "</s>", START: "<|im_start|>", END: "<|im_end|>"}
WORDS = {300: b" the", 301: b"th", 302: b"hello", 303: b"he", 304: b"llo"}

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] + '\n' + m['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@dataclass
class FakeModel:
    """Bytes are tokens 0 to 255; a few words and control tokens come on top.

    Attributes:
        space: put a space in front of every text between control tokens, as SentencePiece does.
        ends: the tokens that end generation.
    """

    chat_template: str | None = CHATML
    add_bos: bool = False
    bos: int | None = BOS
    eos: int | None = EOS
    space: bool = False
    ends: tuple[int, ...] = (EOS, END)
    weights_bytes: int = 1000
    name: str = "fake"
    family: str = "fake"
    n_params: int = 1_000_000
    path: Path = Path("fake.gguf")
    shown_name = Model.shown_name

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        assert not add_special, "chat decides about BOS itself"
        ids: list[int] = []
        fragment = ""
        while text:
            special = next((t for t, mark in SPECIALS.items() if text.startswith(mark)), None)
            if special is not None and parse_special:
                ids += [*self._words(fragment), special]
                fragment, text = "", text[len(SPECIALS[special]) :]
            else:
                fragment, text = fragment + text[0], text[1:]
        return ids + self._words(fragment)

    def _words(self, fragment: str) -> list[int]:
        raw = (b" " if self.space and fragment else b"") + fragment.encode()
        ids: list[int] = []
        while raw:
            longest = max(
                (t for t, word in WORDS.items() if raw.startswith(word)),
                key=lambda t: len(WORDS[t]),
                default=raw[0],
            )
            ids.append(longest)
            raw = raw[len(self.piece(longest)) :]
        return ids

    def piece(self, token: int, *, special: bool = False) -> bytes:
        if token in SPECIALS:
            return SPECIALS[token].encode() if special else b""
        return WORDS[token] if token in WORDS else bytes([token])

    def is_user_defined(self, token: int) -> bool:
        return False

    def is_mark(self, token: int) -> bool:
        return token in SPECIALS

    def is_end(self, token: int) -> bool:
        return token in self.ends

    def text(self, ids: Sequence[int]) -> str:
        """The text of `ids`, control tokens included."""
        return b"".join(self.piece(t, special=True) for t in ids).decode()

    def close(self) -> None:
        self.closed = True


@dataclass
class FakeThreads:
    """Threads that follow every request and count nothing."""

    now: int = 1
    others: float = 0.0
    taken: float = 0.0
    held: bool = True
    watched: int = 0

    def hold(self, hold: bool) -> None:
        self.held = hold

    def watch(self) -> None:
        self.watched += 1


@dataclass
class FakeContext:
    """The parts of a context that a session reads."""

    model: FakeModel
    n_ctx: int = 1000
    cache_bytes: int = 200
    buffer_bytes: int = 30
    threads: FakeThreads = field(default_factory=FakeThreads)

    def close(self) -> None:
        self.closed = True


def tokens_of(rounds: Iterable[Round]) -> list[int]:
    """What rounds emitted, one after the other."""
    return [token for done in rounds for token in done.tokens]


def rounds_of(ids: Sequence[int], *, size: int = 1, from_draft: int = 0) -> list[Round]:
    """Rounds that emit `size` tokens each, the first `from_draft` of each proposed by the draft."""
    return [
        Round(
            tokens=tuple(ids[i : i + size]),
            gamma=from_draft,
            drafted=from_draft,
            accepted=from_draft,
            draft_s=0.0,
            verify_s=0.001,
            total_s=0.001,
        )
        for i in range(0, len(ids), size)
    ]


def round_of(
    drafted: int,
    accepted: int,
    *,
    chance: float = 0.9,
    passes: int | None = None,
    seconds: float = 0.0,
    **more: Any,
) -> Round:
    """A round whose tested positions all had `chance`, and whose verification took `seconds`."""
    passes = drafted if passes is None else passes
    return Round(
        tokens=(1,) * (accepted + 1),
        gamma=drafted,
        drafted=drafted,
        accepted=accepted,
        draft_s=0.0,
        verify_s=seconds,
        total_s=seconds,
        draft_prefill=1 if passes else 0,
        draft_passes=passes,
        confidences=(0.9,) * passes,
        chances=(chance,) * min(passes, accepted + 1),
        **{"drafter": DRAFT if passes else "", **more},
    )


def ended(reason: FinishReason = FinishReason.STOP) -> Round:
    """A last round that emits nothing."""
    return Round((), 0, 0, 0, 0.0, 0.0, 0.0, finish=reason)


def paced(token_s: float) -> PromptSteps:
    """Passes over prompts that have taken this long for each token."""
    steps = PromptSteps(512)
    steps.took(512, 0, 512 * token_s)
    return steps


@dataclass
class ScriptedEngine:
    """Yields the rounds that a test wrote down, one list a turn; remembers what it was asked.

    Attributes:
        answers: for every turn its rounds; an exception in a list is raised in its place.
        on_round: called before every round.
    """

    answers: list[list[Round | Exception]]
    drafts: bool = True
    on_round: Callable[[], None] = lambda: None
    prompts: list[list[int]] = field(default_factory=list)
    prefills: list[Prefill] = field(default_factory=list)
    gammas: list[int] = field(default_factory=list)
    cached: list[int] = field(default_factory=list)
    settings: Any = None
    recorder: SimpleNamespace = field(default_factory=lambda: SimpleNamespace(generation=None))
    prefill_error: Exception | None = None
    steps: PromptSteps = field(default_factory=lambda: paced(0.0))
    closed: bool = False

    def close(self) -> None:
        self.closed = True

    def prefill(
        self, prompt: Sequence[int], cancel: Cancel, _policy: object = None, **_how: object
    ) -> Generator[tuple[int, int], None, Prefill]:
        if self.prefill_error is not None:
            raise self.prefill_error
        self.steps.begin()
        end = len(prompt) - 1
        known = 0
        while known < min(end, len(self.cached)) and self.cached[known] == prompt[known]:
            known += 1
        if cancel.is_set():
            raise Cancelled
        yield 0, end - known
        yield end - known, end - known
        self.prompts.append(list(prompt))
        self.prefills.append(Prefill(len(prompt), known, end - known, 0.01))
        self.cached = list(prompt[:end])
        return self.prefills[-1]

    def generate(
        self, prompt: Sequence[int], settings: Any, policy: Any, cancel: Cancel
    ) -> Iterator[Round]:
        self.settings = settings
        policy.begin(follow_clock=True)
        sequence = list(prompt)
        for done in self.answers.pop(0):
            self.on_round()
            if isinstance(done, Exception):
                raise done
            if cancel.is_set():
                yield ended(FinishReason.CANCELLED)
                return
            self.gammas.append(policy.plan(Situation(room=63)).limit)
            sequence += done.tokens
            self.cached = sequence[:-1]
            policy.observe(done)
            yield done


def fake_session(
    *answers: list[Round | Exception],
    model: FakeModel | None = None,
    settings: ChatSettings | None = None,
    n_ctx: int = 1000,
    drafts: bool = True,
    auto: AutoGamma | None = None,
) -> tuple[Session, ScriptedEngine]:
    """A session that plays `answers`, and its engine."""
    engine = ScriptedEngine(list(answers), drafts=drafts)
    target = FakeContext(model or FakeModel(), n_ctx)
    pair: Any = LoadedPair(
        name="fake",
        target=target,  # type: ignore[arg-type]
        drafts={DRAFT: FakeContext(FakeModel())} if drafts else {},  # type: ignore[dict-item]
        loaded=LoadRecord(ctx_size=n_ctx, threads=1),
        draft_note="" if drafts else "there is no draft",
    )
    engine_: Any = engine
    session = Session(pair, engine_, settings or ChatSettings(), auto=auto, renderer=renderer())
    return session, engine


class RecordingGamma(FixedGamma):
    """A fixed length whose rounds report confidences and acceptance probabilities."""

    def asks(self, drafters: Sequence[str]) -> Sequence[str]:
        return drafters[:1]

    def plan(self, situation: Situation) -> Plan:
        return replace(super().plan(situation), learns=True)


def impatient(monkeypatch: pytest.MonkeyPatch, seconds: float = 0.4) -> None:
    """Set the seconds that templates get; the defaults are 2 to learn and 1.5 to render."""
    monkeypatch.setattr(RenderBudget.__init__, "__defaults__", (seconds,))
    monkeypatch.setattr(learnt, "__defaults__", (seconds, None))


@cache
def renderer() -> TemplateRenderer:
    """One renderer for all tests: its process takes a tenth of a second to start."""
    return TemplateRenderer()
