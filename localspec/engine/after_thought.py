"""`AfterThought` puts a constraint off until the thought that a text begins with is over. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from localspec.engine.exact_ids import Vocabulary
from localspec.engine.grammars.constraint import Constraint


@dataclass(frozen=True, slots=True)
class AfterThought:
    """A constraint for a text that may begin with a thought.

    Attributes:
        then: holds unless a thought begins.
        thinking: holds from its beginning on.
        begin: the mark that begins it, at the beginning of the text or after blanks.
        vocabulary: of the tokens.
        end: what was written so far, which may become that mark.
    """

    then: Constraint
    thinking: Constraint
    begin: bytes
    vocabulary: Vocabulary
    end: bytes = b""

    def allowed(self, ids: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which of `ids` (k,) may come next: (k,)."""
        return self.then.allowed(ids)

    def after(self, token: int) -> Constraint:
        """The state after `token`.

        Raises:
            EngineError: `token` is not allowed.
        """
        text = (self.end + self.vocabulary.piece(token, special=True)).lstrip()
        if text.startswith(self.begin):
            return self.thinking
        then = self.then.after(token)
        return replace(self, then=then, end=text) if self.begin.startswith(text) else then
