"""Record answers for the simulator of several drafters (benchmarks/several.py).

Four kinds of text that repeat what was asked and four that do not, at temperature 0 and 0.8
(coupled rule, one seed). Each answer is written three times, the same: plainly, with the draft
model looking at every place, and with the EAGLE-3 head doing so; nothing is submitted, so that
nothing is left out. What lookup would copy is asked for at every place as well. Takes about a
minute with the demo's files on one thread. JSON:

    uv run python benchmarks/drafters_record.py --output tests/data/drafters_rounds.json
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import product
from pathlib import Path

from drafters_compare import TEMPERATURES, question
from llama_cpp.llama_chat_format import Jinja2ChatFormatter
from several import COPYING, OTHERS

from localspec.engine.acceptance import Accept, verification
from localspec.engine.cancel import Cancel
from localspec.engine.drafter import Drafted, Drafter, ModelDrafter
from localspec.engine.generate import Engine, GenerateSettings
from localspec.engine.heads import head_drafter
from localspec.engine.length.gamma import FixedGamma
from localspec.engine.length.stopping import Plan, Situation
from localspec.engine.llama import Context, ContextOptions, Head, Model
from localspec.engine.lookup import Lookup
from localspec.engine.sampling import SamplingParams
from localspec.engine.stats import DRAFT, EAGLE3, Round

DEMO = Path(__file__).parent.parent / "tests" / "data" / "toy"
COPIED = 24  # tokens of a copy that are kept
ROWS = 48  # places whose distributions are read in one pass


class Glance(Plan):
    """One pass, of which nothing is submitted."""

    def keep(self) -> int:
        """Nothing."""
        return 0


class Glancing(FixedGamma):
    """Lets the only drafter look at every place."""

    def plan(self, situation: Situation) -> Plan:
        """One pass."""
        return next((Glance(1, name, learns=True) for name in situation.lags), Plan(0))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--questions", type=int, default=4, help="of each kind and temperature")
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    options = ContextOptions(n_ctx=1024, threads=1, flash_attention=True)
    with ExitStack() as stack:
        model, small, own = (
            stack.enter_context(Model.load(next(DEMO.glob(f"{name}-*.gguf")), head=name == EAGLE3))
            for name in ("target", DRAFT, EAGLE3)
        )
        target = stack.enter_context(Context(model, options))
        draft = stack.enter_context(Context(small, options))
        head = stack.enter_context(Head(own, target, options))
        drafters = [ModelDrafter(draft, model.n_vocab), head_drafter(head)]
        texts = [
            record(target, drafters, kind, temperature, at, tokens=arguments.tokens)
            for kind, temperature, at in product(
                (*COPYING, *OTHERS), TEMPERATURES, range(arguments.questions)
            )
        ]
    document = {"texts": texts}
    arguments.output.write_text(json.dumps(document, separators=(",", ":")) + "\n", "utf-8")


def record(
    target: Context,
    drafters: Sequence[Drafter],
    kind: str,
    temperature: float,
    at: int,
    *,
    tokens: int,
) -> dict:
    """One answer: what every drafter showed at each of its places behind the first."""
    model = target.model
    render = Jinja2ChatFormatter(model.chat_template or "", eos_token="", bos_token="")
    asked = render(messages=[{"role": "user", "content": question(kind, at)}]).prompt
    ids = model.tokenize(asked, add_special=True, parse_special=True)
    never = {} if kind in COPYING else dict.fromkeys(model.end_tokens, float("-inf"))
    sampling = SamplingParams(temperature=temperature, seed=at, logit_bias=never)

    def written(*drafter: Drafter) -> list[Round]:
        engine = Engine(target, *drafter)
        target.clear()  # a head sees what is decoded
        list(engine.prefill(ids, Cancel()))
        how = GenerateSettings(sampling=sampling, accept=Accept.COUPLED, n_predict=tokens)
        rounds = engine.generate(ids, how, Glancing(1), Cancel())
        return [done for done in rounds if done.tokens]

    answer = [token for done in written() for token in done.tokens]
    models = {}
    for drafter in drafters:
        said = noted(drafter)
        rounds = written(drafter)
        assert [token for done in rounds for token in done.tokens] == answer
        models[drafter.name] = looks(rounds[1:], said, answer[1:])
    found = {"kind": kind, "temperature": temperature, "models": models}
    found["copies"] = copies(target, sampling, ids, answer)
    right = {name: its["right"].count("1") / len(its["right"]) for name, its in models.items()}
    print(f"{kind} {temperature} {at}: {len(answer)} tokens, {right}", flush=True)
    return found


def noted(drafter: Drafter) -> list[tuple[int, ...]]:
    """Grows by what the drafter drafts, submitted or not."""
    said: list[tuple[int, ...]] = []
    propose = type(drafter).propose

    def noting(*asked: object) -> Drafted:
        found: Drafted = propose(drafter, *asked)  # type: ignore[arg-type]
        said.append(found.draft.tokens)
        return found

    drafter.propose = noting  # type: ignore[method-assign]
    return said


def looks(rounds: Sequence[Round], said: Sequence[tuple[int, ...]], answer: Sequence[int]) -> dict:
    """What a model showed, place by place; a place where it had nothing to say counts as wrong."""
    return {
        "confidences": [round(sum(done.confidences), 3) for done in rounds],
        "chances": [round(sum(done.chances), 3) for done in rounds],
        "right": "".join(
            str(int(drafted == (token,))) for drafted, token in zip(said, answer, strict=False)
        ),
    }


def copies(
    target: Context, sampling: SamplingParams, ids: Sequence[int], answer: Sequence[int]
) -> list[list]:
    """Of every place behind the first: confidences, chances, how many are right; in percent."""
    lookup = Lookup(target.n_ctx, target.model.is_end)
    lookup.begin(ids)
    own = [*ids, *answer]
    rows = chances_of(target, sampling, ids, answer)
    found: list[list] = []
    for at in range(len(ids) + 1, len(own)):
        guess = lookup.guess(own[:at], limit=COPIED)
        came = own[at : at + len(guess.tokens)]
        right = next(
            (i for i, (a, b) in enumerate(zip(guess.tokens, came, strict=False)) if a != b),
            len(came),
        )
        judged = zip(guess.tokens[: right + 1], rows[at - len(ids) :], strict=False)
        chances = [round(100 * row.prob(token)) for token, row in judged]
        found.append([[round(100 * sure) for sure in guess.confidences], chances, right])
    return found


def chances_of(
    target: Context, sampling: SamplingParams, ids: Sequence[int], answer: Sequence[int]
) -> list:
    """The distribution of each token of the answer, given those before it."""
    sampler = verification(Accept.COUPLED, sampling).sampler
    found: list = []
    target.show([])
    for start in range(0, len(answer), ROWS):
        part, before = answer[start : start + ROWS], [*ids, *answer[:start]]
        target.keep_prefix(before[:-1])
        unread = before[len(target.tokens) :]
        logits = target.decode([*unread, *part], len(part) + 1)
        rows = sampler.rows(logits, before, part)
        found += [rows[i] for i in range(len(part))]
    return found


if __name__ == "__main__":
    main()
