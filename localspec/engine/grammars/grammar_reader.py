"""Which library reads a grammar: llguidance its form of Lark, llama.cpp its own (GBNF)."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from localspec.engine.grammars import lark
from localspec.engine.grammars.constraint import Constraint
from localspec.engine.llama import Model
from localspec.engine.llama.grammar import LlamaGrammar, LlamaVocabulary, check_grammar

if TYPE_CHECKING:
    from localspec.engine.grammars.guidance import Guidance


class GrammarReader:
    """Reads grammars for one model; keeps the last one, so that asking again costs nothing."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._last: tuple[str, Constraint] | None = None

    def begin(self, grammar: str) -> Constraint:
        """The state of a grammar before any text.

        Raises:
            UsageError: it is not a grammar, or a schema in it cannot be enforced.
        """
        if self._last is None or self._last[0] != grammar:
            self._last = grammar, self._read(grammar)
        return self._last[1]

    def _read(self, grammar: str) -> Constraint:
        if lark.is_lark(grammar):
            return self._guidance.begin(grammar)
        return LlamaGrammar.parse(self._model, grammar, self._vocabulary)

    @cached_property
    def _vocabulary(self) -> LlamaVocabulary:
        return LlamaVocabulary.of(self._model)

    @cached_property
    def _guidance(self) -> Guidance:
        from localspec.engine.grammars.guidance import Guidance  # noqa: PLC0415 - few answers need it

        return Guidance(self._model)


def require_grammar(grammar: str) -> None:
    """Check, without a model, that `grammar` is a grammar.

    Raises:
        UsageError: it is not, or a schema in it cannot be enforced.
    """
    if not lark.is_lark(grammar):
        check_grammar(grammar)
        return
    from localspec.engine.grammars.guidance import check as guided  # noqa: PLC0415 - as above

    guided(grammar)
