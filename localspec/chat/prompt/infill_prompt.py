"""The prompt for a gap in a text, by the marks of the target's own vocabulary."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain

import numpy as np

from localspec.chat.settings import Infill
from localspec.engine.drafters.past_texts import Past
from localspec.engine.llama.model import InfillMarks, Model
from localspec.errors import UsageError

_NEAR = 2048  # the most tokens around the gap, as in llama-server; three quarters of them before it
_ANSWER = 256  # tokens for an answer without a limit; twice as many are reserved
_NAME = "filename\n"  # models expect a file name, and editors send none
_REPOSITORY = "myproject\n"
_SNIPPET = "\n\n--- snippet ---\n\n"  # before another file, if the vocabulary has no mark

Tokenise = Callable[[str], list[int]]


class InfillPrompt:
    """The ids of a prompt that asks to fill a gap, and the texts that it was made of.

    The form is that of llama-server: other files, the end of the text before the gap, and the
    beginning of the text after it. Marks that occur in these texts are read as plain text.

    Args:
        model: the target.
        asked: the gap.
        n_ctx: tokens that the context holds.
        n_predict: tokens to generate at most; -1 for no limit.

    Attributes:
        past: the texts as a whole, for lookup to copy from: the prompt has only a part of them.

    Raises:
        UsageError: the model was not made to fill in text.
    """

    def __init__(self, model: Model, asked: Infill, n_ctx: int, n_predict: int) -> None:
        def ids(text: str) -> list[int]:
            return model.tokenize(text, add_special=False, parse_special=False)

        before, after, middle = _required(model.infill_marks)
        prefix, suffix, begun = ids(asked.prefix), ids(asked.suffix), ids(asked.begun)
        others = [(name, ids(text)) for name, text in asked.others]
        near = min(_NEAR, n_ctx // 2) // 4
        answer = _ANSWER if n_predict < 0 else max(2, n_predict)  # the marks take some of it
        room = max(0, n_ctx - 4 * near - 2 * answer)
        extra = _extra(model.infill_marks, asked, others, ids)
        bos = [model.bos] if model.add_bos and model.bos is not None else []
        self.ids = [
            *extra[max(0, len(extra) - room) :],
            *bos,
            before,
            *prefix[max(0, len(prefix) - 3 * near) :],
            *begun,
            after,
            *suffix[: max(0, near - 2 - len(begun))],
            middle,
        ]
        texts = [*(text for _, text in others), suffix, prefix]
        self.past = Past([np.array(text, np.int32) for text in texts])


def _required(marks: InfillMarks) -> tuple[int, int, int]:
    """The marks that every gap needs: before the prefix, the suffix and the middle."""
    for name in ("prefix", "suffix", "middle"):
        if getattr(marks, name) is None:
            raise UsageError(
                f"Infill is not supported by this model: {name} token is missing",
                "Load a model that was trained for it, such as qwen2.5-coder-7b.",
            )
    return marks.prefix or 0, marks.suffix or 0, marks.middle or 0


def _extra(
    marks: InfillMarks, asked: Infill, others: Sequence[tuple[str, list[int]]], ids: Tokenise
) -> list[int]:
    """Ids of the other files, and of the heading that names this one."""
    if not asked.in_repository:
        return []
    begin = [] if marks.repository is None else [marks.repository, *ids(_REPOSITORY)]
    if marks.file is None:
        snippet = ids(_SNIPPET)
        return [*begin, *chain.from_iterable([*snippet, *text] for _, text in others)]
    files = chain.from_iterable([marks.file, *ids(f"{name}\n"), *text] for name, text in others)
    return [*begin, *files, marks.file, *ids(_NAME)]
