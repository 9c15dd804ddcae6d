"""A training that ends when its time is up, and that can be stopped and taken up again."""

from __future__ import annotations

import json
import signal
import time
from typing import TYPE_CHECKING, Protocol

import torch
from train import LOG_SECONDS, STEP_SECONDS, device

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence
    from types import FrameType

CONTEXT = 512
SAVE_SECONDS = 180


class Part(Protocol):
    """What a restart needs: weights, an optimiser, a place in the data."""

    def state_dict(self) -> dict:
        """Return what `load_state_dict` takes."""
        ...

    def load_state_dict(self, state: dict, /) -> object:
        """Go on where another one was."""
        ...


class Training:
    """Steps until the time is up; `WORK/last.pt` holds all that a restart needs."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        torch.manual_seed(args.seed)
        self.where = device()
        self.elapsed, self.step = 0.0, 0
        self.stopping = False
        args.work.mkdir(parents=True, exist_ok=True)

    def parts(self) -> Sequence[Part]:
        """Return what is saved, always in the same order."""
        raise NotImplementedError

    def learn(self) -> dict[str, float]:
        """Change the weights a little; return figures."""
        raise NotImplementedError

    def advance(self) -> dict[str, float]:
        """Do one step; return its figures."""
        figures = self.learn()
        self.step += 1
        return figures

    @property
    def left(self) -> float:
        """The share of the time that is left."""
        return max(0.0, 1 - self.elapsed / (60 * self.args.minutes))

    def save(self) -> None:
        """Save all that a restart needs."""
        path = self.args.work / "last.pt"
        parts = [part.state_dict() for part in self.parts()]
        state = {"parts": parts, "elapsed": self.elapsed, "step": self.step}
        torch.save(state, path.with_suffix(".part"))
        path.with_suffix(".part").replace(path)

    def restore(self) -> None:
        """Take up the run in the work folder, if there is one."""
        path = self.args.work / "last.pt"
        if not path.exists():
            return
        state = torch.load(path, map_location=self.where, weights_only=False)
        for part, saved in zip(self.parts(), state["parts"], strict=True):
            part.load_state_dict(saved)
        self.elapsed, self.step = state["elapsed"], state["step"]

    def stop(self, _number: int, _frame: FrameType | None) -> None:
        """Ask for an end after this step."""
        self.stopping = True

    def train(self) -> None:
        """Train until the time is up or the process is asked to stop."""
        signal.signal(signal.SIGTERM, self.stop)
        clock = time.monotonic()
        logged = saved = self.elapsed
        smooth: dict[str, float] = {}
        while self.elapsed < 60 * self.args.minutes and not self.stopping:
            for name, value in self.advance().items():
                smooth[name] = smooth.get(name, value) * 0.95 + 0.05 * value
            now = time.monotonic()
            self.elapsed, clock = self.elapsed + min(now - clock, STEP_SECONDS), now
            if self.elapsed - logged > LOG_SECONDS:
                logged = self.elapsed
                self.log(smooth)
            if self.elapsed - saved > SAVE_SECONDS:
                saved = self.elapsed
                self.save()
        self.save()

    def log(self, figures: dict[str, float]) -> None:
        """Print figures."""
        tokens = self.step * self.args.rows * CONTEXT
        line = {"step": self.step, "tokens": tokens, "minutes": self.elapsed / 60} | figures
        print(json.dumps({k: round(v, 4) for k, v in line.items()}), flush=True)
