"""What a bench is asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from localspec.bench.prompts import PromptSet
from localspec.chat.settings import ChatSettings, Gamma
from localspec.engine.params import SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is wanted.

    Attributes:
        prompts: the questions.
        repeats: how often each is asked.
        n_predict: tokens of an answer at most.
        temperature: 0 for greedy.
        seed: of the first repeat.
        gamma: of the settings that draft.
        drafts: several drafts for the target; empty for the pair's.
        sweep: draft lengths that are run besides.
        deadline: by the clock `perf_counter`; None for none.
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

    def settings(self, end_tokens: frozenset[int]) -> ChatSettings:
        """What all settings have in common. A seed is given, so that off and on draw the same."""
        bias = dict.fromkeys(end_tokens, float("-inf")) if self.prompts.ignore_end else {}
        sampling = SamplingParams(temperature=self.temperature, seed=self.seed, logit_bias=bias)
        return ChatSettings(sampling=sampling, n_predict=self.n_predict, repeatable=True)

    def document(self) -> dict[str, Any]:
        """The same for the report."""
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
            "quick": self.deadline is not None,
        }
