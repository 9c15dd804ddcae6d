"""Counters of requests and tokens, for Prometheus and for one line in the terminal."""

from __future__ import annotations

from collections import defaultdict

from localspec import formats
from localspec.chat.figures.benefit import summary
from localspec.chat.figures.figures import Figures
from localspec.engine.record.stats import GenerationStats, MemoryUse

# name: (type, description); names and descriptions follow Prometheus and llama-server.
_METRICS = {
    "prompt_tokens_total": ("counter", "Prompt tokens read."),
    "prompt_tokens_cached_total": ("counter", "Prompt tokens that the cache held already."),
    "prompt_seconds_total": ("counter", "Seconds spent reading prompts."),
    "tokens_predicted_total": ("counter", "Tokens generated."),
    "tokens_predicted_seconds_total": ("counter", "Seconds spent generating."),
    "drafted_tokens_total": ("counter", "Tokens drafted, by drafter."),
    "accepted_tokens_total": ("counter", "Drafted tokens accepted, by drafter."),
    "requests_total": ("counter", "Replies, by status."),
    "engine_restarts_total": ("counter", "Times the engine's process was started again."),
    "requests_processing": ("gauge", "Requests being answered."),
    "requests_deferred": ("gauge", "Requests waiting."),
    "memory_bytes": ("gauge", "Resident size of both processes, and accelerators' memory in use."),
}


class EndpointCounters:
    """Counts requests and tokens since the endpoint started.

    Attributes:
        running, waiting: jobs.
        finished: answers.
        asleep: whether the memory was given back.
    """

    def __init__(self) -> None:
        self._counts: defaultdict[tuple[str, str], float] = defaultdict(float)  # (name, labels)
        self.running = 0
        self.finished = 0
        self.waiting = 0
        self.figures: Figures | None = None
        self.memory: MemoryUse | None = None
        self.asleep = False

    def answered(self, stats: GenerationStats) -> None:
        """Count a finished answer."""
        self.finished += 1
        add = self._add
        add("prompt_tokens_total", stats.prefill_decoded)
        add("prompt_tokens_cached_total", stats.prefill_cached)
        add("prompt_seconds_total", stats.prefill_s)
        add("tokens_predicted_total", stats.generated_tokens)
        add("tokens_predicted_seconds_total", stats.decode_s)
        for name, its in stats.drafters.items():
            label = f'{{drafter="{name}"}}'
            add("drafted_tokens_total", its.drafted, label)
            add("accepted_tokens_total", its.accepted, label)

    def replied(self, status: int) -> None:
        """Count a reply."""
        self._add("requests_total", 1, f'{{status="{status}"}}')

    def restarted(self) -> None:
        """Count a restart of the engine's process."""
        self._add("engine_restarts_total", 1)

    def _add(self, name: str, value: float, labels: str = "") -> None:
        self._counts[name, labels] += value

    def prometheus(self) -> str:
        """All counts and gauges in Prometheus's text format."""
        gauges = {
            ("requests_processing", ""): self.running,
            ("requests_deferred", ""): self.waiting,
            ("memory_bytes", ""): self.memory.taken if self.memory and not self.asleep else 0,
        }
        values = {**self._counts, **gauges}
        lines = []
        for name, (kind, meaning) in _METRICS.items():
            full = f"localspec:{name}"
            lines += [f"# HELP {full} {meaning}", f"# TYPE {full} {kind}"]
            found = [(labels, value) for (one, labels), value in values.items() if one == name]
            lines += [f"{full}{labels} {value:.10g}" for labels, value in found or [("", 0)]]
        return "\n".join(lines) + "\n"

    def line(self) -> str:
        """The present activity in one line, for the terminal."""
        parts = [f"{formats.count(self.finished)} answered", f"{self.running} running"]
        parts.append(f"{self.waiting} waiting")
        figures = self.figures
        if figures is not None and figures.speed_average is not None:
            parts.append(f"the last one {formats.speed(figures.speed_average)} tokens/s")
        if figures is not None and (said := summary(figures)):
            parts.append(said)
        if self.asleep:
            parts.append("unloaded until the next request")
        elif self.memory is not None:
            parts.append(formats.size(self.memory.taken))
        return " · ".join(parts)
