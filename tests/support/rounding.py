"""A target whose passes over several tokens round differently from those over one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from localspec.engine.llama import Context


def round_by(monkeypatch: pytest.MonkeyPatch, most: float) -> None:
    """Make every logit of a pass over several tokens wrong by up to `most`."""
    drawn, decode = np.random.default_rng(0), Context.decode

    def rounded(context: Context, tokens: Sequence[int], n_logits: int) -> Any:
        logits = decode(context, tokens, n_logits)
        if n_logits > 1:
            logits = logits + drawn.uniform(-most, most, logits.shape).astype(np.float32)
        return logits

    monkeypatch.setattr(Context, "decode", rounded)
