"""Flash attention on, off and as localspec chooses, behind contexts of several lengths.

The padded demo pair, or any other: answers at temperature 0 behind prompts of about 100, 500 and
900 tokens, plain and with automatic gamma, the three ways in turn. Prints tokens per second
(medians), how long the pair took to load each time, and what was chosen. With LOCALSPEC_CACHE set
to an empty folder the first load includes all measuring. The machine has to be idle. Takes about
six minutes.

    uv run python benchmarks/attention.py [PAIR] [--threads N]
"""

from __future__ import annotations

import argparse
import time
from contextlib import closing
from dataclasses import replace
from statistics import median

from localspec.chat.events import TurnEnd
from localspec.chat.session import Session
from localspec.engine.cancel import Cancel
from localspec.loading.load import load_session
from localspec.loading.request import LoadRequest

SENTENCE = "The little boat went out to sea, and the wind was kind to it all day long. "
WAYS = ("on", "off", "auto")
USUAL_CONTEXT, ROOM = 1024, 64  # tokens: the demo's, and what the template adds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pair", nargs="?")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--repeats", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--prompts", type=int, nargs="+", default=[100, 500, 900])
    arguments = parser.parse_args()
    request = LoadRequest(
        pair=arguments.pair, threads=arguments.threads, temp=0.0, n_predict=arguments.tokens
    )
    if (needed := max(arguments.prompts) + arguments.tokens + ROOM) > USUAL_CONTEXT:
        request = replace(request, ctx_size=needed)
    speeds: dict[tuple[str, str, int], list[float]] = {}
    loads: dict[str, list[float]] = {way: [] for way in WAYS}
    chosen = "?"
    for _ in range(arguments.repeats):
        for way in WAYS:
            started = time.perf_counter()
            how = replace(request, flash_attn=way)
            session = load_session(how, progress=lambda _step, _share: None, cancel=Cancel())
            loads[way].append(time.perf_counter() - started)
            with closing(session):
                if way == "auto":
                    chosen = session.pair.loaded.flash_attn
                for tokens in arguments.prompts:
                    for drafting in (False, True):
                        key = (way, "auto" if drafting else "plain", tokens)
                        speed = answer(session, tokens, drafting=drafting)
                        speeds.setdefault(key, []).append(speed)
    print(f"Chosen: flash attention {chosen}. Loading, seconds, first and median of the others:")
    for way, seconds in loads.items():
        print(f"  {way}: {seconds[0]:.1f}, {median(seconds[1:] or seconds):.1f}")
    print("\n| prompt | gamma | " + " | ".join(WAYS) + " | auto / best |")
    print("|---|---|---|---|---|---|")
    for tokens in arguments.prompts:
        for gamma in ("plain", "auto"):
            found = [median(speeds[way, gamma, tokens]) for way in WAYS]
            cells = " | ".join(f"{each:.1f}" for each in found)
            print(f"| {tokens} | {gamma} | {cells} | {found[-1] / max(found):.2f} |")


def answer(session: Session, tokens: int, *, drafting: bool) -> float:
    """Tokens per second behind a prompt of about so many."""
    model = session.pair.target.model
    sentence = len(model.tokenize(SENTENCE, add_special=False, parse_special=False))
    session.reset()
    session.speculation = drafting
    *_, end = session.turn(SENTENCE * (tokens // sentence), Cancel())
    assert isinstance(end, TurnEnd)
    return end.stats.tokens_per_second or 0.0


if __name__ == "__main__":
    main()
