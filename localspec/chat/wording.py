"""Words for the values that a conversation reports: the same on every screen and in every file."""

from __future__ import annotations

from localspec.engine.stats import GammaNote, GammaReason, Speedup

_GAMMA = {
    GammaReason.OFF: "off",
    GammaReason.FIXED: "fixed",
    GammaReason.NOT_MEASURED: "drafting {length}: not measured here yet (localspec tune)",
    GammaReason.NOTHING_REPEATS: "not drafting: there is no draft model, and nothing repeats",
    GammaReason.UNDECIDED: "automatic: decided while the answer is written",
    GammaReason.TOO_DEAR: "not drafting: this draft costs more than it saves here",
    GammaReason.UNKNOWN: "drafting: nothing is known about this draft yet",
    GammaReason.PAYS: "drafting {length}: {accepted}, {gain:.1f}{times} expected",
}


def lossy_words(lenience: float | None) -> str:
    """What has to stand wherever a speed is shown; empty for a lossless rule."""
    return "" if lenience is None else f"lossy {lenience:g}"


def gamma_words(note: GammaNote | None, *, times: str = "x") -> str:
    """Where gamma comes from, for a person.

    Args:
        note: of `Figures.gamma_note`; None for nothing to say.
        times: the sign behind a ratio; plain text has ``x``.
    """
    if note is None:
        return ""
    accepted = f"{100 * (note.acceptance or 0.0):.0f} % accepted"
    gain = note.speedup or 1.0
    said = _GAMMA[note.reason].format(
        length=note.length,
        accepted=f"{note.kind}, {accepted}" if note.kind else accepted,
        gain=gain,
        times=times,
    )
    lossy = note.lenience is not None and note.reason is not GammaReason.OFF
    return f"{said}, {lossy_words(note.lenience)}" if lossy else said


def speedup_words(found: Speedup, *, times: str = "x") -> str:
    """What drafting brought, with its doubt, for a person."""
    return f"{found.estimate:.1f}{times}, {found.low:.1f} to {found.high:.1f}"
