"""The live figures: one frozen snapshot that a screen may read from any thread at any time."""

from __future__ import annotations

from dataclasses import dataclass

from localspec.engine.stats import GammaNote, Speedup


@dataclass(frozen=True, slots=True)
class Figures:
    """What the panel shows. Rates are None until there is something to divide.

    Attributes:
        generating: whether a turn is running.
        speculation: whether drafting is switched on and possible.
        gamma: draft length in force now; 0 is plain decoding.
        gamma_note: where gamma comes from; `wording.gamma_words` says it. None where nobody knows.
        speed_now: tokens per second over about the last second.
        speed_average: tokens per second of this turn after its first token.
        speedup: of this answer over plain decoding, measured by neighbouring rounds with and
            without a draft; None while that is not known.
        lossy: "lossy" and the lenience where drafting changes what the target would say, else "".
        acceptance_rate: accepted over drafted tokens, this turn.
        tokens_per_round: emitted tokens per verify pass, this turn.
        drafted, accepted, recovered, bonus: token counts, this turn.
        generated: tokens generated this turn.
        time_to_first_token_s: seconds, load left out.
        draft_s, verify_s: seconds spent drafting and verifying, this turn.
        prompt_tokens, prompt_cached: the turn's prompt, and how much of it was cached.
        draft_cached, draft_read: the same prompt for the draft: tokens that its cache held, and
            tokens that it had to read before its first guess (the answer's first token too).
        context_used, context_size: tokens.
    """

    generating: bool = False
    speculation: bool = False
    gamma: int = 0
    gamma_note: GammaNote | None = None
    speed_now: float | None = None
    speed_average: float | None = None
    speedup: Speedup | None = None
    lossy: str = ""
    acceptance_rate: float | None = None
    tokens_per_round: float | None = None
    drafted: int = 0
    accepted: int = 0
    recovered: int = 0
    bonus: int = 0
    generated: int = 0
    time_to_first_token_s: float | None = None
    draft_s: float = 0.0
    verify_s: float = 0.0
    prompt_tokens: int = 0
    prompt_cached: int = 0
    draft_cached: int = 0
    draft_read: int = 0
    context_used: int = 0
    context_size: int = 0

    @property
    def plain_speed(self) -> float | None:
        """Tokens per second that this answer would have had without a draft, None if unknown."""
        if self.speedup is None or self.speed_average is None:
            return None
        return self.speed_average / self.speedup.estimate
