"""Several clients ask in three protocols, while the engine is killed and unloaded now and then."""

from __future__ import annotations

import json
import random
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import psutil

from tests.support.conformance import alike, given_up, told
from tests.support.endpoint import Serving, in_parallel
from tests.support.talks import CHAT, MESSAGES, PATHS, Heard, Talk, body, drawn, events, heard

CLIENTS = 4
_TALKS = 16
_BUSY = (503, 529)
_ATTEMPTS = 40
_PAUSE_S = 2.0  # between two attempts, though the server may ask for more
_WAIT_S = 120.0  # for one reply: an engine starts within seconds


@dataclass
class MixedRequests:
    """What was asked, and what became of it.

    Attributes:
        served: unloads after a second without a request.
        pairs: names that requests have for a model; all of them give the same greedy text.
        answers: how many requests were answered.
        parted: how many of the answers whose prompt was read from its beginning differ from those
            to the same requests asked alone; with `--exact` none may.
        continued, turned: the answers whose prompt the caches may have held in part, and how many
            of these differ. A few may: what is held decides how the sums of a prompt round.
        others: how many were counted, refused as they should be, or given up.
        again: how often a request had to be sent again because no engine was running.
        kills: how often the engine was killed.
        unloads: how often its memory was given back.
        resident: bytes that all processes took at the end of each burst.
        children: the processes that were seen below the server's.
    """

    served: Serving
    pairs: tuple[str, ...]
    seed: int
    answers: int = 0
    parted: int = 0
    continued: int = 0
    turned: int = 0
    others: int = 0
    again: int = 0
    kills: int = 0
    unloads: int = 0
    resident: list[int] = field(default_factory=list)
    children: dict[int, psutil.Process] = field(default_factory=dict)
    _pool: list[tuple[Talk, Heard]] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def run(self, each: int, bursts: int) -> None:
        """Have every client ask `each` times in a burst; between two bursts the engine unloads."""
        talks = [talk for n in range(4 * _TALKS) if not (talk := drawn(self.seed + n)).image]
        self._pool = [(talk, self._alone(talk)) for talk in talks[:_TALKS]]
        for burst in range(bursts):
            over = threading.Event()
            killer = threading.Thread(target=self._kill, args=(over, burst))
            killer.start()
            try:
                in_parallel([partial(self._ask, client, burst, each) for client in range(CLIENTS)])
            finally:
                over.set()
                killer.join()
            self.served.until_free(30)
            self.resident.append(self._note_processes())
            self._until_unloaded()

    def _alone(self, talk: Talk) -> Heard:
        status, _, data = self.served.ask(CHAT, body(CHAT, talk, cache_prompt=False))
        assert status == 200, data
        return alike(heard(CHAT, json.loads(data)))

    def _note_processes(self) -> int:
        """Note which processes there are; return the bytes that they take."""
        server = psutil.Process(self.served.process.pid)
        taken = server.memory_info().rss
        for child in server.children(recursive=True):
            self.children[child.pid] = child
            with suppress(psutil.NoSuchProcess):
                taken += child.memory_info().rss
        return taken

    def _until_unloaded(self) -> None:
        end = time.monotonic() + 60
        while psutil.Process(self.served.process.pid).children():
            assert time.monotonic() < end, "the memory is not given back"
            time.sleep(0.05)
        self.unloads += 1

    def left(self) -> list[psutil.Process]:
        """Those of the server's children that go on, once it has ended."""
        return psutil.wait_procs([*self.children.values()], timeout=20)[1]

    def _kill(self, over: threading.Event, burst: int) -> None:
        """Kill the engine at random, but not before it has answered since the last time."""
        rng, before = random.Random(f"{self.seed} {burst}"), self.answers
        while not over.wait(rng.uniform(0.2, 2.0)):
            with self._lock:
                answered = self.answers
            if answered == before:
                continue
            with suppress(AssertionError, psutil.NoSuchProcess):  # it may be about to start
                self._note_processes()
                self.served.engine().kill()
                self.kills, before = self.kills + 1, answered

    # A client

    def _ask(self, client: int, burst: int, each: int) -> None:
        rng = random.Random(f"{self.seed} {burst} {client}")
        for _ in range(each):
            talk, expected = rng.choice(self._pool)
            path, kind = rng.choice(PATHS), rng.random()
            if kind < 0.1:
                with suppress(OSError):
                    given_up(self.served, path, talk)
            elif kind < 0.2:
                picture = body(path, replace(talk, image=True))
                status, _, data = self.served.ask(path, picture, timeout=_WAIT_S)
                assert status == 400, data
            elif kind < 0.3:
                found = self._reply(f"{MESSAGES}/count_tokens", body(MESSAGES, talk))
                assert json.loads(found)["input_tokens"] == expected.usage[0]
            else:
                self._answered(path, talk, expected, rng)
                continue
            with self._lock:
                self.others += 1

    def _answered(self, path: str, talk: Talk, expected: Heard, rng: random.Random) -> None:
        """Ask until an answer is whole; compare it with the one to the same request asked alone."""
        more: dict[str, Any] = {"model": rng.choice(self.pairs), "stream": rng.random() < 0.5}
        more["cache_prompt"] = rng.random() < 0.5
        if more["stream"] and path == CHAT:
            more["stream_options"] = {"include_usage": True}
        for _ in range(_ATTEMPTS):
            data = self._reply(path, body(path, talk, **more))
            if not more["stream"]:
                found = heard(path, json.loads(data))
            elif _broken(pieces := events(data)):
                self._once_more()
                continue
            else:
                found = told(path, pieces)
            assert found.usage[0] == expected.usage[0], (path, talk, found)
            with self._lock:
                self.answers += 1
                if more["cache_prompt"]:
                    self.continued += 1
                    self.turned += alike(found) != expected
                else:
                    self.parted += alike(found) != expected
            return
        raise AssertionError("there was never a whole answer")

    def _reply(self, path: str, asked: dict[str, Any]) -> bytes:
        """The reply; the request is sent again for as long as the server says it has no engine."""
        for _ in range(_ATTEMPTS):
            status, headers, data = self.served.ask(path, asked, timeout=_WAIT_S)
            if status not in _BUSY:
                assert status == 200, data
                return data
            self._once_more()
            time.sleep(min(float(headers["retry-after"]), _PAUSE_S))
        raise AssertionError("the server was never free")

    def _once_more(self) -> None:
        with self._lock:
            self.again += 1


def _broken(found: list[tuple[str, dict[str, Any]]]) -> bool:
    """Whether a stream ended with an error."""
    return any(name in ("error", "response.failed") or event.get("error") for name, event in found)
