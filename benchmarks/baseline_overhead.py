"""What localspec adds to a token without drafting, against a bare loop of ``llama_decode``.

The bare loop does what llama-bench's ``tg`` does: one token per ``llama_decode``, then
``llama_synchronize``; nothing reads the logits. Both arms take turns in one process and over one
context: they decode the same tokens at the same depth, with the same threads and the same
attention. Each arm of localspec does all that the arm before it does, and more:

    engine    rounds of `Engine.generate`: the pass, the sampler chain, the record of the round
    session   `Session.complete`: text and figures are made of the rounds
    told      every round is encoded and written to a pipe, which another process reads
    lookup    with --lookup: the automatic draft length with lookup alone, whose rounds without a
              draft are counted; loading then measures the machine first

Prints milliseconds a token of each arm and of the bare loop next to it, what the arm adds (the
median over the turns, with a bootstrap interval of 95 %), and how much processor time it takes
outside ``llama_decode``, which other programs on the machine disturb less. Takes half a minute for
a model of 135 million parameters.

    uv run python -m benchmarks.baseline_overhead MODEL.gguf --threads 2
"""

from __future__ import annotations

import argparse
import ctypes
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from pathlib import Path
from time import perf_counter, thread_time
from typing import Any, NamedTuple

import numpy as np
from llama_cpp import llama_cpp as lib

from localspec.chat.events import RoundText, TurnEvent
from localspec.chat.session.answer import AnswerText
from localspec.chat.session.session import Session
from localspec.chat.settings import ChatSettings, Gamma
from localspec.engine.cancel import Cancel
from localspec.engine.length.gamma import FixedGamma
from localspec.engine.record.stats import Round
from localspec.engine.round.generate_settings import GenerateSettings
from localspec.engine.round.params import Accept, SamplingParams
from localspec.loading.load import load_session
from localspec.loading.load_request import LoadRequest
from localspec.process.channel import Channel
from localspec.process.messages import Envelope, TurnReported

READER = "import os, time\nwhile os.read(0, 1 << 16):\n    time.sleep(0.02)\n"
TEXT = "Write a long story about a dog who wanted to see the sea. Describe every place. "


class Took(NamedTuple):
    """Milliseconds of a token: by the clock, and of the processor outside ``llama_decode``."""

    clock: float
    own: float


class DecodeClock:
    """Adds up the processor time that this thread spends inside ``llama_decode``."""

    def __init__(self) -> None:
        self.seconds = 0.0
        decode = lib.llama_decode

        def timed(*arguments: Any) -> int:
            started = thread_time()
            code: int = decode(*arguments)
            self.seconds += thread_time() - started
            return code

        lib.llama_decode = timed

    def outside(self) -> float:
        """Processor seconds of this thread outside ``llama_decode`` so far."""
        return thread_time() - self.seconds


class Arms:
    """Ways to decode `count` tokens that follow `prompt`."""

    def __init__(
        self, session: Session, clock: DecodeClock, prompt: list[int], count: int, temp: float
    ) -> None:
        self.session, self.clock, self.prompt, self.count = session, clock, prompt, count
        self.sampling = SamplingParams(temperature=temp)
        self.tokens: list[int] = []
        self.envelopes = 0
        self.reader = subprocess.Popen([sys.executable, "-c", READER], stdin=subprocess.PIPE)
        assert self.reader.stdin is not None
        self.nothing = Path(os.devnull).open("rb")  # noqa: SIM115 - there are no answers to read
        self.channel = Channel(self.nothing, self.reader.stdin, Envelope)

    def close(self) -> None:
        """End the process that reads the pipe."""
        self.channel.close()
        self.reader.wait()
        self.nothing.close()

    def bare(self) -> Took:
        """`llama_decode` alone, over the tokens that the last arm wrote."""
        target = self.session.pair.target
        target.keep_prefix(self.prompt[:-1])
        token, position = np.zeros((2, 1), np.int32)
        wanted, ids = np.ones(1, np.int8), ctypes.POINTER(ctypes.c_int32)
        batch = lib.llama_batch(
            n_tokens=1,
            token=token.ctypes.data_as(ids),
            pos=position.ctypes.data_as(ids),
            logits=wanted.ctypes.data_as(ctypes.POINTER(ctypes.c_int8)),
        )
        before = 0.0, 0.0
        tokens = [self.prompt[-1], *self.tokens[:-1]]
        for i, one in enumerate(tokens):
            token[0], position[0] = one, len(self.prompt) - 1 + i
            lib.llama_decode(target.handle, batch)
            lib.llama_synchronize(target.handle)
            if i == 0:  # the other arms do not count the token after the prompt either
                before = perf_counter(), self.clock.outside()
        target.tokens.extend(tokens)
        spent = perf_counter() - before[0], self.clock.outside() - before[1]
        return Took(*(1e3 * each / (len(tokens) - 1) for each in spent))

    def engine(self) -> Took:
        """The rounds of the engine."""
        engine, cancel = self.session.engine, Cancel()
        list(engine.prefill(self.prompt, cancel))
        how = GenerateSettings(
            sampling=self.sampling, accept=Accept.BLOCK, n_predict=self.count, repeatable=True
        )
        return self._timed(engine.generate(self.prompt, how, FixedGamma(0), cancel))

    def text(self) -> Took:
        """Rounds, with text and figures made of them."""
        return self._timed(self._events(0))

    def told(self) -> Took:
        """As `text`, and every round is sent to another process."""
        return self._timed(self._telling(self._events(0)))

    def lookup(self) -> Took:
        """As `told`, with the automatic length, which looks for copies and weighs them."""
        return self._timed(self._telling(self._events("auto")))

    def _events(self, gamma: Gamma) -> Iterator[TurnEvent]:
        settings = ChatSettings(
            sampling=self.sampling,
            accept=Accept.BLOCK,  # the rule of an answer without a seed
            gamma=gamma,
            n_predict=self.count,
            repeatable=True,  # no thread is given up for other programs
        )
        answer = AnswerText(self.session.pair.target.model.piece, ())
        return self.session.complete(self.prompt, settings, answer, Cancel())

    def _telling(self, events: Iterable[TurnEvent]) -> Iterator[TurnEvent]:
        for event in events:
            self.envelopes += 1
            self.channel.send(Envelope(self.envelopes, TurnReported(event)))
            yield event

    def _timed(self, events: Iterable[Round | TurnEvent]) -> Took:
        """Milliseconds of the rounds without a draft, except the first."""
        clock = own = 0.0
        decoded, self.tokens = 0, []
        before: tuple[float, float] | None = None
        for event in events:
            if not isinstance(event, Round | RoundText):
                continue
            done = event if isinstance(event, Round) else event.round
            now = perf_counter(), self.clock.outside()
            if before is not None and not done.drafted:
                clock, own = clock + now[0] - before[0], own + now[1] - before[1]
                decoded += 1
            self.tokens += done.tokens
            before = now
        return Took(1e3 * clock / max(1, decoded), 1e3 * own / max(1, decoded))


def interval(values: list[float]) -> tuple[float, float, float]:
    """Median, and where 95 % of the medians of samples drawn from the values lie."""
    draws = np.random.default_rng(0).choice(values, (2000, len(values)))
    low, high = np.percentile(np.median(draws, axis=1), (2.5, 97.5))
    return statistics.median(values), float(low), float(high)


def measure(arms: Arms, seconds: float) -> None:
    """Measure the arms in turns, each next to the bare one, and print a row for each."""
    names: dict[str, Callable[[], Took]] = {
        "engine": arms.engine,
        "session": arms.text,
        "told": arms.told,
    }
    if arms.session.settings.gamma == "auto":
        names["lookup"] = arms.lookup
    took: dict[str, list[tuple[Took, Took]]] = {name: [] for name in names}
    arms.engine()
    started = perf_counter()
    while perf_counter() - started < seconds:
        for name, arm in names.items():
            mine = arm()
            if mine.clock:  # else every round had a draft
                took[name].append((mine, arms.bare()))
    label = "0" if arms.sampling.greedy else f"{arms.sampling.temperature:g}"
    for name, turns in took.items():
        if not turns:
            continue
        added, low, high = interval([mine.clock - bare.clock for mine, bare in turns])
        mine, bare = (statistics.median(one.clock for one in each) for each in zip(*turns))  # noqa: B905
        own = statistics.median(mine.own - bare.own for mine, bare in turns)
        print(
            f"| {label} | {name} | {bare:.2f} | {mine:.2f}"
            f" | {added:+.2f} ({low:+.2f} to {high:+.2f}) | {own:.2f} | {len(turns)} |",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--depth", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=48, help="of a turn")
    parser.add_argument("--lookup", action="store_true", help="measure that arm, too")
    parser.add_argument("--seconds", type=float, default=12, help="for each temperature")
    given = parser.parse_args()
    request = LoadRequest(
        pair=str(given.model),
        draft="lookup",
        threads=given.threads,
        ctx_size=given.depth + 256,
        gamma="auto" if given.lookup else 0,
    )
    clock = DecodeClock()
    with closing(load_session(request, progress=lambda *_: None, cancel=Cancel())) as session:
        model, how = session.pair.target.model, session.pair.loaded
        model.is_end = lambda token: False  # type: ignore[method-assign] # noqa: ARG005 - all as long
        words = model.tokenize(TEXT, add_special=False, parse_special=False)
        prompt = (words * (given.depth // len(words) + 1))[: given.depth]
        print(
            f"{model.path.name}, {how.threads} threads, flash attention {how.flash_attn}, after"
            f" {given.depth} tokens; milliseconds a token\n"
        )
        print(
            "| temperature | arm | bare | localspec | added (95 %) | own processor time | turns |"
        )
        print("|---|---|---|---|---|---|---|")
        for temp in (0.0, 0.8):
            with closing(Arms(session, clock, prompt, given.tokens, temp)) as arms:
                measure(arms, given.seconds)


if __name__ == "__main__":
    main()
