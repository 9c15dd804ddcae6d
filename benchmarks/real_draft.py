"""Record what a draft model says along the recorded answers of a target.

The real drafter is asked at every place of every answer, and told what came: one with the target's
tokens, or with tokens that are cut from its text. Every turn begins anew. The drafter reads the
whole prompt, or with --end never more than the end of a long one: a policy chooses between them.

For each token after the first the file has how sure the draft was of its guess (in percent; 0 also
where it could not guess), and whether the guess was right: at temperature 0 the target's best,
above it the one drawn (the coupled rule; the seed is the conversation's number, as in
`benchmarks/real_record.py`, which wrote the answers). So a replay above temperature 0 knows the
outcome of a guess, where the app knows its chance. A run that was stopped goes on where it ended.
On two quiet cores a draft takes some ten minutes each way:

    uv run python -m benchmarks.real_draft DRAFT.gguf TARGET.gguf ANSWERS.jsonl.gz
        --temperature 0 --output NEW.jsonl.gz [--end]
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.real_record import lines
from benchmarks.several import Answer, Look
from localspec.drafter_names import DRAFT
from localspec.engine.cancel import Cancel
from localspec.engine.drafters.cross_vocabulary import VocabularyMap
from localspec.engine.drafters.cross_vocabulary_drafter import CrossVocabularyDrafter
from localspec.engine.drafters.model_drafter import ModelDrafter
from localspec.engine.drafters.proposer import Proposer
from localspec.engine.drafters.protocol import Drafter
from localspec.engine.length.stopping import Plan
from localspec.engine.llama import Context, ContextOptions, Model
from localspec.engine.round.acceptance import verification
from localspec.engine.round.generate_settings import GenerateSettings
from localspec.engine.round.params import Accept, SamplingParams
from localspec.pairs.gguf.header import read_header
from localspec.pairs.report import vocabulary

# Of text: it is cut into the target's tokens with what follows, as a word's first half may be
# another token. Most words have fewer pieces.
_PIECES = 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("draft", type=Path)
    parser.add_argument("target", type=Path, help="for its vocabulary")
    parser.add_argument("recorded", type=Path)
    parser.add_argument("--temperature", type=float, required=True, help="that of the answers")
    parser.add_argument("--end", action="store_true", help="read only the end of a long prompt")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--output", type=Path, required=True)
    given = parser.parse_args()
    options = ContextOptions(n_ctx=4096, threads=given.threads, flash_attention=True)
    done = len(lines(given.output))
    with (
        Model.load(given.target) as target,
        Model.load(given.draft) as model,
        Context(model, options) as context,
    ):
        drafter = drafter_for(target, context)
        for at, line in enumerate(lines(given.recorded)[done:], done):
            sampling = SamplingParams(temperature=given.temperature, seed=at)
            how = GenerateSettings(sampling=sampling, accept=Accept.COUPLED)
            proposer = verification(how).proposer
            turns = [
                said(drafter, turn["prompt"], turn["answer"], proposer, whole=not given.end)
                for turn in line["turns"]
            ]
            with gzip.open(given.output, "at", encoding="utf-8") as file:
                file.write(json.dumps(turns, separators=(",", ":")) + "\n")
            shares = (f"{right.count('1') / len(right):.2f}" for _, right in turns if right)
            print(at, line["kind"], *shares, flush=True)


def drafter_for(target: Model, draft: Context) -> Drafter:
    """The drafter that the app would make of these two."""
    headers = read_header(target.path), read_header(draft.model.path)
    if vocabulary.check(*headers).compatible:
        return ModelDrafter(draft, target.n_vocab)
    return CrossVocabularyDrafter(draft, VocabularyMap(target, draft.model))


def said(
    drafter: Drafter,
    prompt: Sequence[int],
    answer: Sequence[int],
    proposer: Proposer,
    *,
    whole: bool,
) -> tuple[list[int], str]:
    """Confidences and whether the guesses were right, along one answer after its first token."""
    limit = _PIECES if drafter.capabilities.own_vocabulary else 1
    plan = Plan(limit, drafter.name, learns=True, whole=whole)
    drafter.begin(prompt, proposer, Cancel(), anew=True)
    confidences, right = [], ""
    for at in range(len(prompt) + 1, len(prompt) + len(answer)):
        tokens, came = [*prompt, *answer][: at + 1], answer[at - len(prompt)]
        proposal = drafter.propose(tokens[:-1], plan)
        guessed = proposal.draft.tokens[:1]
        confidences.append(round(100 * proposal.confidences[0]) if guessed else 0)
        right += str(int(guessed == (came,)))
        drafter.observe(tokens, int(guessed == (came,)))
    return confidences, right


def looks(path: Path) -> Iterator[list[Look]]:
    """What a recorded draft said along every turn, from the second token of its answer on."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        for line in file:
            yield from (looked(*turn) for turn in json.loads(line))


def looked(confidences: Sequence[int], right: str) -> list[Look]:
    """What `said` found along an answer, from its second token on."""
    return [
        Look(sure / 100, float(came == "1"), came == "1")
        for sure, came in zip(confidences, right, strict=True)
    ]


def with_looks(text: Answer, prompt: int, whole: Sequence[Look], end: Sequence[Look]) -> Answer:
    """An answer of two tokens and more, with what a draft said along it.

    Args:
        text: its places; the first is not drafted.
        prompt: tokens before it.
        whole: from its second token on, knowing all of the prompt.
        end: the same, knowing its end alone.
    """
    first = replace(text[0], looks={DRAFT: whole[0]}, prompt=prompt)
    places = zip(text[1:], whole, end, strict=True)
    return [first, *(replace(at, looks={DRAFT: a}, ends={DRAFT: b}) for at, a, b in places)]


if __name__ == "__main__":
    main()
