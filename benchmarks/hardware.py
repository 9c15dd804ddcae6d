"""Write docs/hardware.md: what to expect of drafting on machines whose T(n) was published.

Lookup: recorded answers of a real model are replayed with the real lookup and the real policy over
each curve of `models/curves.toml` (`benchmarks/real_lookup.py` has the replay), also with a draft
model that was recorded along them (`benchmarks/real_curves.py`); the speeds go into that file, from
which `localspec show` has them too, by the same groups of machines and weights
(`published.groups`). Heads are computed from the tokens in a round, which were published or follow
from published acceptances, next to the speeds that were published with them. Files of `localspec
bench --share` in `benchmarks/data/shared` become rows. No model is loaded; the replay takes a
minute, the page alone a second:

    uv run python -m benchmarks.hardware [--replay] [--output docs/hardware.md]
"""

from __future__ import annotations

import argparse
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final, Literal

from benchmarks.real_curves import STEP, with_draft
from benchmarks.real_lookup import answers
from benchmarks.real_record import lines
from benchmarks.several import Answer, Prices, speed
from localspec.bench.sharing.shared_file import read_shared
from localspec.bench.sharing.shared_report import SharedGain, SharedReport
from localspec.drafter_names import DRAFT, MTP
from localspec.engine.length.cost import Curve, Points
from localspec.engine.length.gamma import AutoGamma
from localspec.errors import LocalspecError
from localspec.loading.measurements import published
from localspec.loading.measurements.published import Group, Range
from localspec.loading.measurements.ranking import ACCEPTED, HEAD_STEP
from localspec.pairs.disk.folders import shipped
from localspec.safe_text import one_line

DATA: Final = Path(__file__).parent / "data"
RECORDED: Final = DATA / "qwen2.5-coder-1.5b-q4_k_m.t0.jsonl.gz"
COLUMNS: Final = {  # the recorded kinds in each kind of `published.KINDS`
    "edits": ("edit", "fix"),
    "quotes": ("quote",),
    "conversions": ("convert",),
    "code": ("code",),
    "chat": ("chat", "explain", "summarise"),
}
PAYS: Final = 1.1  # times as fast: less is hard to notice
TEXT: Final = """# Does it pay on my machine?

Times as fast as without drafting. Lookup works with every model and needs no download; a draft and
most heads are a further file, and the table assumes that 70 % of their tokens are accepted and that
each takes {step:.3f} of the time of a token without drafting.

{short}

A row stands for weights of its size alone: others have other costs. What has no row, or `?` in it,
is not known, for want of published figures. What is called published was measured, with the heads
of the last table. Mixtures of experts have `?` because no speed of one with a head was published.

Where it does not pay, localspec drafts nothing. `localspec show` says what is expected of your own
machine, and `localspec bench --quick` measures it.

These are expectations, not measurements: `benchmarks/hardware.py` makes this page from published
costs of small batches (`models/curves.toml` has their sources), and a chip that is not named below
may differ from its kind. [`bench --share`](bench.md#--share-file) writes a row for this page.

## Lookup

Speed over no drafting, by kind of text: {n} answers of Qwen2.5-Coder-1.5B at temperature 0,
replayed with the real lookup and `--gamma auto` over each machine's T(n)/T(1).

{lookup}

Curves measured by `ub` (`llama-bench -ub n`) leave out the vocabulary's rows, the output matrix, of
which a verification needs one for every token; `pp` (`-p n`) has one a pass; `bb`
(`llama-batched-bench`) has all. Nothing was added for them: a whole pass may cost a little less or
more than its row says.

## Lookup and a draft model

The same answers and machines with Qwen2.5-Coder-0.5B as a draft as well, as sure and as often right
as it was along these answers (75 to 99 % of its tokens, by kind), at a tenth of the time of a token
each. The automatic choice drafts by either. Mixtures of experts are left out, since a draft takes
another share of their time.

{both}

## Heads

Tokens in a round over T(n + 1) / T(1) + n c, where the head's step c = {step:.3f} T(1) follows from
its bytes (Qwen3.8-27B, MTP). The tokens in a round were published for the Radeon 8060S; for the RTX
4090 and the RX 7900 XTX only acceptances were, and 1 + drafted x acceptance is ours. All three
curves leave out the vocabulary's rows.

{heads}

The expectation is off by {off:.0f} % in the median, and by {worst:.0f} % at most.

Others published these speeds, in tokens/s without and with a head:

{speeds}
{shared}"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path("docs/hardware.md"))
    parser.add_argument("--replay", action="store_true", help="compute the speeds of lookup anew")
    asked = parser.parse_args()
    if asked.replay:
        replay()
    asked.output.write_text(page(), "utf-8")


def page() -> str:
    """The page, from the data files."""
    rows = list(heads(tomllib.loads((DATA / "heads.toml").read_text("utf-8"))["head"]))
    off = [abs(expected / told - 1) for *_, expected, told in rows]
    return TEXT.format(
        short=short(list(published.groups().values())),
        n=sum(len(turn["answer"]) > 1 for line in lines(RECORDED) for turn in line["turns"]),
        lookup=by_kind("lookup"),
        both=by_kind("both"),
        step=HEAD_STEP,
        heads=table(
            ("machine", "its curve", "drafted", "tokens in a round", "expected", "published"),
            [(*named, f"{n:.1f}", f"{x:.2f}", f"{told:.2f}") for *named, n, x, told in rows],
        ),
        off=100 * median(off),
        worst=100 * max(off),
        speeds=table(
            ("machine", "model", "without", "with", "source"),
            [
                (each.machine, each.model, *each.tokens, each.source)
                for group in published.groups().values()
                for each in group.speeds
            ],
        ),
        shared=shared(DATA / "shared"),
    )


def replay() -> None:
    """Write the speeds on each curve, by kind of text, into the file of the curves."""
    alone = [(kind, text) for kind, text in answers(RECORDED) if len(text) > 1]
    drafted = [(kind, text) for kind, texts in with_draft().items() for text in texts]
    path = shipped("curves.toml")
    head, *blocks = path.read_text("utf-8").split("[[curve]]\n")
    for at, curve in enumerate(published.curves()):
        for key, found, steps in (("lookup", alone, {}), ("both", drafted, {DRAFT: STEP})):
            if key == "both" and curve.kind == "experts":
                continue  # a draft's step takes another share of the few weights a token reads
            prices = Prices.of(curve.points, steps)
            gains = (f"{name} = {gain(prices, found, COLUMNS[name]):.2f}" for name in COLUMNS)
            line = f"{key} = {{ {', '.join(gains)} }}"
            blocks[at], replaced = re.subn(f"(?m)^{key} = .*$", line, blocks[at])
            if not replaced:
                blocks[at] = f"{blocks[at].rstrip()}\n{line}\n\n"
    path.write_text("[[curve]]\n".join([head, *blocks]).rstrip() + "\n", "utf-8")
    published.read.cache_clear()


def points(times: Mapping[str, float]) -> Points:
    """T(n) in units of T(1)."""
    return {1: 1.0} | {int(n): ratio for n, ratio in times.items()}


def short(groups: Sequence[Group]) -> str:
    """The answer for each group: the range over its curves, or over published speeds."""
    rows = []
    for group in groups:
        told = {kind: group.lookup.get(kind) for kind in ("edits", "chat")}
        drafts = "a head or draft" if group.curves else "a head"
        told[drafts] = group.drafted(ACCEPTED[MTP], HEAD_STEP, head=True)
        known = {kind: gains for kind, gains in told.items() if gains is not None}
        sure = [kind for kind, gains in known.items() if gains[0] >= PAYS]
        perhaps = [kind for kind, gains in known.items() if gains[0] < PAYS <= gains[1]]
        parts = ("yes" if len(sure) == len(told) else f"for {' and '.join(sure)}") if sure else ""
        more = f"perhaps for {' and '.join(perhaps)}" if perhaps else ""
        unsure = "no" if len(known) == len(told) else "measure it first"
        answer = "; ".join(filter(None, (parts, more))) or unsure
        made = "" if group.curves else ", published"
        cells = (span(gains) + made if gains is not None else "?" for gains in told.values())
        rows.append((group.name, *cells, answer))
    head = "your machine", "edits, by lookup", "chat, by lookup", "head or draft", "does it pay?"
    return table(head, rows)


def span(gains: Range) -> str:
    """A range of speed-ups: ``2.1 to 3.1``, or ``1.4`` where both ends read alike."""
    low, high = (f"{each:.1f}" for each in gains)
    return low if low == high else f"{low} to {high}"


def by_kind(drafter: Literal["lookup", "both"]) -> str:
    """The speed-ups on every curve, by kind of text."""
    rows = []
    for curve in published.curves():
        if not (gains := getattr(curve, drafter)):
            continue
        cells = [f"{gains[kind]:.2f}" for kind in COLUMNS]
        t4 = f"{Curve(curve.points).seconds(4):.2f}"
        rows.append((curve.machine, curve.model, curve.how, t4, *cells))
    names = (", ".join(kinds) for kinds in COLUMNS.values())
    return table(("machine", "model", "by", "T(4)", *names), rows)


def gain(prices: Prices, found: Sequence[tuple[str, Answer]], kinds: Sequence[str]) -> float:
    """Tokens in the time of a baseline round, over all tokens of these kinds."""
    texts = [text for kind, text in found if kind in kinds]
    rounds = sum(len(text) / speed(AutoGamma(prices.costs()), [text], prices) for text in texts)
    return sum(map(len, texts)) / rounds


def heads(
    published: Sequence[Mapping[str, Any]],
) -> Iterator[tuple[str, str, int, float, float, float]]:
    """Expected and published speed-ups of each head and draft length."""
    for each in published:
        known = points(each["times"])
        for drafted, length, speedup in each["measured"]:
            n = drafted + 1
            curve = each["curve"] + (f", T({n}) extrapolated" if n > max(known) else "")
            expected = length / (Curve(known).seconds(n) + drafted * HEAD_STEP)
            yield each["machine"], curve, drafted, length, expected, speedup


def shared(folder: Path) -> str:
    """The rows of shared files; refused files are left out and named."""
    rows: list[tuple[str, ...]] = []
    for path in sorted(folder.glob("*.json")):
        try:
            rows += shared_rows(read_shared(path.read_bytes()))
        except LocalspecError as error:
            print(f"{one_line(path.name)}: {error.message}")
    if not rows:
        return ""
    head = "machine", "model", "T(4)", "drafters", "speed-ups (95 %)"
    return f"\n## Measured and shared\n\n{table(head, rows)}\n"


def shared_rows(found: SharedReport) -> Iterator[tuple[str, ...]]:
    """A row for every choice of drafters."""
    times = dict(found.curve)
    t4 = f"{Curve(times).seconds(4) / times[1]:.2f}" if max(times) >= 4 else "?"
    for arm in found.arms:
        yield found.machine, found.target.type, t4, arm.drafters, ", ".join(map(gained, arm.gains))


def gained(gain: SharedGain) -> str:
    """A speed-up and its interval, which a single question does not have."""
    if gain.acceptance is None:
        return f"{gain.kind} nothing drafted"
    told = f"{gain.kind} {gain.speedup:.2f}"
    if gain.low is None or gain.high is None:
        return told
    return f"{told} ({gain.low:.2f}–{gain.high:.2f})"


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Rows as Markdown; nothing in a cell is markup."""
    lines = [f"| {' | '.join(str(cell).replace('|', '/') for cell in row)} |" for row in rows]
    return "\n".join([f"| {' | '.join(head)} |", f"|{'---|' * len(head)}", *lines])


if __name__ == "__main__":
    main()
