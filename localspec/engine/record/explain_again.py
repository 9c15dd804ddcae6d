"""Explains a round of a finished generation: decodes it again from what its record keeps.

That is the drafted tokens, and how many numbers had been drawn before them.
"""

from __future__ import annotations

from localspec.engine.cancel import Cancel
from localspec.engine.drafters.proposer import argmax_proposer
from localspec.engine.drafters.protocol import Drafter
from localspec.engine.drafters.steps import EXCERPT_TOKENS
from localspec.engine.length.stopping import Plan
from localspec.engine.record.explainer import Explainer, PassRecorder, can_record
from localspec.engine.record.explanation import RoundExplanation
from localspec.engine.record.round_record import GenerationRecord, RoundRecord
from localspec.engine.round.acceptance import verification
from localspec.engine.round.generate import Engine
from localspec.engine.round.verify import Draft
from localspec.errors import EngineError


def explain_again(
    engine: Engine, record: GenerationRecord, number: int, cancel: Cancel
) -> RoundExplanation:
    """Decode a round again and explain it; the caches are left at that position.

    Args:
        engine: the engine that made the round; no generation may be running.
        record: of the generation.
        number: of the round, from 1.
        cancel: stops it.

    Raises:
        Cancelled: `cancel` was set.
        EngineError: the drafter no longer proposes these tokens there.
    """
    made = record.rounds[number - 1]
    tokens = record.tokens[: made.position]
    how = verification(record.settings)
    how.sampler.accept(tokens[record.begun :])
    passes = PassRecorder(how.proposer, made.drafted)
    draft = _drafted_again(engine, record, made, passes, cancel)
    engine.read_again(record, made.position, cancel)
    engine.target.mark(len(made.drafted) + 1)
    logits = engine.target.decode([tokens[-1], *made.drafted], len(made.drafted) + 1)
    passes.logits = logits
    rows = how.sampler.rows(logits, tokens, made.drafted)
    explainer = Explainer(how, record, passes, engine.target.model)
    found = explainer.explain(number, draft, rows, again=True)
    engine.target.truncate(made.position - 1)
    return found


def _drafted_again(
    engine: Engine,
    record: GenerationRecord,
    made: RoundRecord,
    passes: PassRecorder,
    cancel: Cancel,
) -> Draft:
    """The same draft, with the rows that it was drawn from."""
    tokens = record.tokens[: made.position]
    own, copied = made.drafted[: made.own], made.drafted[made.own :]
    drafter = engine.drafters.get(made.figures.drafter)
    target = engine.target.model
    if drafter is None or not own or not can_record(drafter, passes.proposer, target):
        return Draft(own).followed_by(copied)
    if drafter.capabilities.listener is not None:
        _show(engine, drafter, record, made, cancel)
    drafter.begin(tokens, passes, cancel, answered=len(tokens) - record.begun)
    plan = Plan(max(made.own, made.figures.block), drafter.name, whole=not made.figures.left_out)
    found = drafter.propose(tokens, plan).draft
    drafter.observe(tokens, 0)
    draft = Draft(found.tokens[: made.own], found.q and found.q[: made.own])
    rows = draft.q or ()
    drawn = all(q.prob(token) > 0 for q, token in zip(rows, own, strict=False))
    if draft.tokens != own or not drawn:
        raise EngineError(
            f"the {drafter.name} does not draft here any more",
            "Answer again (F5) and look while the answer is written.",
        )
    return draft.followed_by(copied)


def _show(
    engine: Engine, drafter: Drafter, record: GenerationRecord, made: RoundRecord, cancel: Cancel
) -> None:
    """Replay the target's states to a head part by part, and draft after each part.

    A head that begins anew reads only the latest states, so it would miss the parts before.
    """
    engine.target.clear()
    tokens = record.tokens[: made.position]
    drafter.begin(tokens, argmax_proposer, cancel)
    last = len(tokens) - 1
    for end in (*range(made.begun + EXCERPT_TOKENS, last, EXCERPT_TOKENS), last):
        engine.read_again(record, end, cancel)
        engine.target.decode(tokens[end - 1 : end], 0)
        if end < last:
            drafter.propose(tokens[: end + 1], Plan(1, drafter.name))
            drafter.observe(tokens[: end + 1], 0)
