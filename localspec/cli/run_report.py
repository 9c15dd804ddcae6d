"""What `localspec run` says about a run: the JSON document and the summary for people."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from localspec import formats
from localspec.chat.events import TurnEnd
from localspec.chat.session import Session
from localspec.chat.wording import gamma_words, lossy_words, speedup_words
from localspec.engine.stats import GenerationStats, Round


def document(session: Session, end: TurnEnd) -> dict[str, Any]:
    """The document that `--json` prints: times in seconds, sizes in bytes."""
    stats, speedup = end.stats, session.figures().speedup
    return {
        "text": end.text,
        "tokens": [token for done in stats.rounds for token in done.tokens],
        "finish_reason": end.reason.value,
        "prompt_tokens": stats.prompt_tokens,
        "generated_tokens": stats.generated_tokens,
        "tokens_per_second": stats.tokens_per_second,
        "time_to_first_token_s": stats.time_to_first_token_s,
        "drafted_tokens": stats.drafted_tokens,
        "accepted_tokens": stats.accepted_tokens,
        "acceptance_rate": stats.acceptance_rate,
        "mean_tokens_per_round": stats.mean_tokens_per_round,
        "speedup": asdict(speedup) if speedup else None,
        "rounds": [_round(done) for done in stats.rounds],
        "drafters": {name: asdict(its) for name, its in stats.drafters.items()},
        "prefill": prefill(stats),
        "peak_memory_bytes": session.peak_memory_bytes(),
        "settings": settings(session),
        "notices": session.notices,
    }


def _round(done: Round) -> dict[str, Any]:
    return {
        "gamma": done.gamma,
        "drafter": done.drafter,
        "drafted": done.drafted,
        "accepted": done.accepted,
        "emitted": done.emitted,
        "draft_s": done.draft_s,
        "verify_s": done.verify_s,
    }


def prefill(stats: GenerationStats) -> dict[str, dict[str, int]]:
    """How much of the prompt each model had cached, and how much it decoded."""
    return {
        "target": {"cached": stats.prefill_cached, "decoded": stats.prefill_decoded},
        "draft": {"cached": stats.draft_cached, "decoded": stats.draft_prefill},
    }


def settings(session: Session) -> dict[str, Any]:
    """Everything that was in force."""
    chosen, pair = session.settings, session.pair
    sampling = asdict(chosen.sampling)
    return {
        "pair": pair.name,
        "target": str(pair.target.model.path),
        "draft": str(pair.draft.model.path) if pair.draft else None,
        "draft_note": session.speculation_note,
        **pair.loaded.document(),
        "temp": sampling.pop("temperature"),
        **sampling,
        # JSON has no infinity.
        "logit_bias": {str(token): str(bias) for token, bias in chosen.sampling.logit_bias.items()},
        "accept": chosen.rule.value if chosen.lenience is None else "lossy",
        "lossy": chosen.lenience,
        "grammar": chosen.grammar or None,
        "gamma": chosen.gamma,
        "gamma_note": gamma_words(session.figures().gamma_note),
        "n_predict": chosen.n_predict,
        "system_prompt": chosen.system_prompt,
        "stop": list(chosen.stop),
    }


def summary(session: Session, stats: GenerationStats) -> str:
    """The figures for a person, one to a line."""
    lines = [
        ("prompt", _prompt_line(stats)),
        ("generated", _generated_line(session, stats)),
        ("time to first token", _seconds(stats.time_to_first_token_s)),
        ("draft length", _gamma_line(session)),
        ("drafted", f"{stats.drafted_tokens} tokens, {stats.accepted_tokens} accepted"),
        ("acceptance rate", _share(stats.acceptance_rate)),
        ("tokens per round", _number(stats.mean_tokens_per_round)),
        ("speed-up", _speedup_line(session)),
        ("time", f"{stats.draft_s:.2f} s drafting, {stats.verify_s:.2f} s verifying"),
        ("peak memory", formats.size(session.peak_memory_bytes())),
    ]
    width = max(len(label) for label, _ in lines)
    return "\n".join(f"{label:<{width}}  {text}" for label, text in lines)


def _prompt_line(stats: GenerationStats) -> str:
    return f"{stats.prompt_tokens} tokens, {stats.prefill_cached} cached, {stats.prefill_s:.2f} s"


def _generated_line(session: Session, stats: GenerationStats) -> str:
    note = lossy_words(session.settings.lenience)
    speed = f"{_number(stats.tokens_per_second)} tokens/s{f' ({note})' if note else ''}"
    return f"{stats.generated_tokens} tokens, {speed}"


def _gamma_line(session: Session) -> str:
    if not session.speculation:
        return f"0 (plain decoding; {session.speculation_note or 'gamma is 0'})"
    figures = session.figures()
    return f"{figures.gamma} ({gamma_words(figures.gamma_note)})"


def _speedup_line(session: Session) -> str:
    found = session.figures().speedup
    return f"{speedup_words(found)} (measured)" if found else "- (not measured)"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f} s"
