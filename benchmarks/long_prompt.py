"""Short answers behind long prompts: what a draft that has to read them costs.

Conversations of about 900 tokens, answers of 100, at temperature 0 and 0.8: plain and automatic in
turn, by the demo's draft and by one with random weights, which is never right. Prints the ratios of
tokens per second (all of the answer, from the first token on) and of the time to the first token:
the median with its 95 % interval. The padded demo pair takes about seven minutes with two repeats;
the machine has to be idle.

    PYTHONPATH=. uv run python benchmarks/long_prompt.py [--repeats N]

With --last, how many drafted tokens are accepted, and how many the draft reads, where it begins on
so many tokens of the text's end; gamma is 4. Counts alone: the machine may be busy.
With --head a head drafts.

    PYTHONPATH=. uv run python benchmarks/long_prompt.py --last 32 64 128 512
        [--head tests/data/toy/eagle3-Q8_0.gguf]
"""

from __future__ import annotations

import argparse
import random
import tempfile
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from statistics import median

from gamma_compare import KINDS

from localspec.chat.conversation import Message, Role
from localspec.chat.events import TurnEnd
from localspec.chat.session import Session
from localspec.chat.settings import Gamma
from localspec.engine.cancel import Cancel
from localspec.engine.drafter import Drafter, ModelDrafter
from localspec.engine.heads import HeadDrafter
from localspec.engine.llama.head import TargetStates
from localspec.engine.stats import DRAFT, GenerationStats
from localspec.limits import HEAD_REACH
from localspec.loading.load import load_session
from localspec.loading.request import LoadRequest
from tests.support.gguf_models import write_random_llama

PROMPT, ANSWER = 900, 100


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--last", type=int, nargs="+")
    parser.add_argument("--head")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        wrong = write_random_llama(Path(folder) / "random.gguf", n_layer=8, n_embd=512)
        usual = arguments.head or "auto"
        for name, draft in (("the demo's", usual), ("never right", str(wrong))):
            request = LoadRequest(draft=draft, threads=arguments.threads, ctx_size=2048, seed=1)
            with closing(load_session(request, progress=lambda *_: None, cancel=Cancel())) as one:
                one.pair.hold_threads(True)
                if arguments.last and draft == usual:
                    count(one, conversations(one), arguments.last)
                elif not arguments.last:
                    compare(name, one, conversations(one), arguments.repeats)


def conversations(session: Session) -> list[list[Message]]:
    """Two for each kind of text, as long as they have to be."""
    found = []
    for questions in KINDS.values():
        for start in (0, 6):
            talk: list[Message] = []
            while length(session, talk) < PROMPT - 120:
                question = questions[(start + len(talk) // 2) % len(questions)]
                said = answer(session, talk, question, 0, 0.8, tokens=150)[0]
                talk += [Message(Role.USER, question), Message(Role.ASSISTANT, said)]
            talk.append(Message(Role.USER, questions[start + 5]))
            found.append(talk)
    return found


def length(session: Session, talk: list[Message]) -> int:
    text = "".join(message.content for message in talk)
    return len(session.pair.target.model.tokenize(text, add_special=False, parse_special=False))


def answer(
    session: Session,
    talk: list[Message],
    question: str,
    gamma: Gamma,
    temperature: float,
    *,
    tokens: int = ANSWER,
) -> tuple[str, GenerationStats]:
    """One answer, no cache filled before, by the rule that makes one text of a seed."""
    for context in (session.pair.target, *session.pair.drafts.values()):
        context.clear()
    session.open(talk)
    never = dict.fromkeys(session.pair.target.model.end_tokens, float("-inf"))
    sampling = replace(session.settings.sampling, temperature=temperature, logit_bias=never)
    session.settings = replace(
        session.settings, sampling=sampling, gamma=gamma, n_predict=tokens, repeatable=True
    )
    *_, end = session.turn(question, Cancel())
    assert isinstance(end, TurnEnd)
    return end.text, end.stats


def count(session: Session, talks: list[list[Message]], lasts: list[int]) -> None:
    print("| read of the end | accepted at 0 | accepted at 0.8 | tokens read an answer |")
    print("|---|---|---|---|")
    for last in lasts:
        reads = next(iter(session.engine.drafters.values()))
        begin_on(reads, last)
        cells, read = [], 0
        for temperature in (0.0, 0.8):
            stats = [
                answer(session, talk[:-1], talk[-1].content, 4, temperature)[1] for talk in talks
            ]
            accepted = sum(each.accepted_tokens for each in stats)
            cells.append(f"{accepted / sum(each.drafted_tokens for each in stats):.3f}")
            read += sum(done.draft_prefill for each in stats for done in each.rounds)
        print(f"| {last} | {' | '.join(cells)} | {read / 2 / len(talks):.0f} |", flush=True)


def begin_on(reads: Drafter, last: int) -> None:
    """Let it read so many tokens of a text's end before it drafts."""
    if isinstance(reads, HeadDrafter):
        reads.look, head = last, reads.head
        head.states = TargetStates(max(last, HEAD_REACH), head.states.width)
    else:
        assert isinstance(reads, ModelDrafter)
        reads.excerpt.last = last


def compare(name: str, session: Session, talks: list[list[Message]], repeats: int) -> None:
    print(f"\nWith a draft that is {name}:\n")
    print("| temperature | auto / plain | time to first token | accepted | read |")
    print("|---|---|---|---|---|")
    for temperature in (0.0, 0.8):
        speeds, firsts, drafted = [], [], []
        for turn, talk in enumerate(repeats * talks):
            gammas: list[Gamma] = [0, "auto"] if turn % 2 else ["auto", 0]
            got = {
                gamma: answer(session, talk[:-1], talk[-1].content, gamma, temperature)[1]
                for gamma in gammas
            }
            plain, auto = got[0], got["auto"]
            speeds.append(seconds(plain) / seconds(auto))
            firsts.append((auto.time_to_first_token_s or 0) / (plain.time_to_first_token_s or 1))
            drafted.append(auto.drafters.get(DRAFT))
        tokens = sum(each.drafted for each in drafted if each)
        share = sum(each.accepted for each in drafted if each) / max(1, tokens)
        read = sum(done.draft_prefill for done in auto.rounds)
        cells = f"{interval(speeds)} | {interval(firsts)} | {share:.2f} | {read}"
        print(f"| {temperature} | {cells} |", flush=True)


def seconds(stats: GenerationStats) -> float:
    return stats.decode_s + sum(done.between_s for done in stats.rounds[1:])


def interval(ratios: list[float]) -> str:
    """The median, and its interval by bootstrap."""
    luck = random.Random(0)
    found = sorted(median(luck.choices(ratios, k=len(ratios))) for _ in range(2000))
    return f"{median(ratios):.3f} [{found[50]:.3f}, {found[1949]:.3f}]"


if __name__ == "__main__":
    main()
