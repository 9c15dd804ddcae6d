"""What verification costs, and what each acceptance rule brings.

    python benchmarks/verification.py cost           one minute
    python benchmarks/verification.py rounds         tokens per round of every rule, ten minutes
    python benchmarks/verification.py paired         the same from the same states, two minutes
    python benchmarks/verification.py speed          block against coupled, paired, five minutes
    python benchmarks/verification.py temperature    the draft's own temperature, two minutes
    python benchmarks/verification.py chi-square     20,000 seeds for three rules, thirty minutes

Times are for the demo pair on two CPU cores. `--target` and `--draft` take another pair, `--n`
another amount of work. Tables are printed as Markdown.
"""

from __future__ import annotations

import argparse
import ctypes
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from llama_cpp import llama_cpp as lib

from localspec.engine import verify
from localspec.engine.acceptance import Accept, coupling, overlap
from localspec.engine.cancel import Cancel
from localspec.engine.drafter import ModelDrafter
from localspec.engine.generate import Engine, GenerateSettings
from localspec.engine.length.gamma import FixedGamma
from localspec.engine.llama import Context, ContextOptions, Model
from localspec.engine.noise import CounterNoise, Noise, StreamNoise
from localspec.engine.sampling import Dist, Sampler, SamplingParams
from localspec.engine.stats import DRAFT, Round
from localspec.engine.verify import Draft, Rule, block_rule, match_rule, token_rule

DEMO = Path(__file__).parents[1] / "tests" / "data" / "toy"
GAMMA = 4
STARTS = (
    "Once upon a time there was a",
    "The little girl went to the",
    "One day a dog and a cat",
    "In the garden there was a big",
    "Tom wanted to play with his",
    "The sun was hot and the",
    "Mom said that they could",
    "A bird sat in the tree and",
    "They found a box. In the box",
    "It was cold outside, so",
    "The old man had a boat",
    "Lily was sad because",
)


def main() -> None:
    """Run the part that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--target", type=Path, default=next(DEMO.glob("target-*.gguf"), None))
    parser.add_argument("--draft", type=Path, default=next(DEMO.glob("draft-*.gguf"), None))
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--n", type=int, default=None, help="amount of work")
    arguments = parser.parse_args()
    PARTS[arguments.part](arguments)


# ---------------------------------------------------------------- what it costs

ALL_FILTERS = SamplingParams(
    temperature=0.8,
    top_k=40,
    top_p=0.95,
    min_p=0.05,
    typical_p=0.95,
    repeat_penalty=1.1,
    presence_penalty=0.1,
    frequency_penalty=0.1,
    logit_bias={7: -1.0},
    seed=1,
)


def cost(arguments: argparse.Namespace) -> None:
    """Rows and rule of one round at several vocabularies, beside llama.cpp's sampler."""
    print("| vocabulary | settings | rule | median ms | 95 % interval | llama.cpp's sampler ms |")
    print("|---|---|---|---|---|---|")
    repeats = arguments.n or 200
    greedy = SamplingParams(temperature=0.0)
    for n_vocab in (4096, 32_000, 152_000):
        for name, params in (
            ("greedy", greedy),
            ("defaults", SamplingParams(seed=1)),
            ("all filters", ALL_FILTERS),
        ):
            theirs = _llama_round(n_vocab, params)
            rules: dict[str, tuple[Rule, Noise]] = {"match": (match_rule, StreamNoise(1))}
            if not params.greedy:
                rules |= {
                    "coupled": (match_rule, CounterNoise(1)),
                    "token": (token_rule, StreamNoise(1)),
                    "block": (block_rule, StreamNoise(1)),
                }
            for rule_name, (rule, noise) in rules.items():
                ours = _our_round(n_vocab, params, rule, noise)
                a, b = _interleaved(ours, theirs, repeats)
                low, high = _interval(a)
                print(
                    f"| {n_vocab} | {name} | {rule_name} | {statistics.median(a):.3f} |"
                    f" {low:.3f} to {high:.3f} | {statistics.median(b):.3f} |"
                )


def _logits(n_vocab: int) -> tuple[np.ndarray, np.ndarray]:
    """(5, n_vocab) like a language model's: a wide bulk and a few that stand out; and a draft's."""
    rng = np.random.default_rng(0)
    target = rng.normal(0, 2.5, (GAMMA + 1, n_vocab)).astype(np.float32)
    for row in target:
        row[rng.integers(0, n_vocab, 60)] += rng.gamma(4, 2, 60).astype(np.float32)
    draft = target + rng.normal(0, 0.3, target.shape).astype(np.float32)
    return target, draft


HISTORY = list(range(100, 400))


def _our_round(
    n_vocab: int, params: SamplingParams, rule: Rule, noise: Noise
) -> Callable[[], object]:
    """All rows and the verdict. The draft is the target's choice, so that every row is needed."""
    target, near = _logits(n_vocab)
    sampler = Sampler(params)
    q = tuple(sampler.row(near[i], HISTORY) for i in range(GAMMA))
    probable = [int(sampler.row(target[i], HISTORY).ids[0]) for i in range(GAMMA)]
    tokens = tuple(
        token if row.prob(token) else int(row.ids[0])
        for token, row in zip(probable, q, strict=True)
    )
    draft = Draft(tokens, q)

    def once() -> object:
        rows = sampler.rows(target, HISTORY, draft.tokens)
        for row in rows:
            assert len(row.ids)
        return rule(draft, rows, noise, len(HISTORY))

    return once


def _llama_round(n_vocab: int, params: SamplingParams) -> Callable[[], object]:
    """The same rows through llama.cpp's chain, the candidates filled from the logits each time."""
    target, _ = _logits(n_vocab)
    chain = lib.llama_sampler_chain_init(lib.llama_sampler_chain_default_params())
    bias = (lib.llama_logit_bias * len(params.logit_bias))(*params.logit_bias.items())
    penalties = lib.llama_sampler_init_penalties(
        n_vocab,
        params.repeat_last_n,
        params.repeat_penalty,
        params.frequency_penalty,
        params.presence_penalty,
    )
    for sampler in (
        lib.llama_sampler_init_logit_bias(n_vocab, len(bias), bias),
        penalties,
        lib.llama_sampler_init_top_k(params.top_k),
        lib.llama_sampler_init_typical(params.typical_p, 0),
        lib.llama_sampler_init_top_p(params.top_p, 0),
        lib.llama_sampler_init_min_p(params.min_p, 0),
        lib.llama_sampler_init_temp(params.temperature),
        lib.llama_sampler_init_dist(1),
    ):
        lib.llama_sampler_chain_add(chain, sampler)
    for token in HISTORY[-params.repeat_last_n :]:
        lib.llama_sampler_accept(penalties, token)
    data = (lib.llama_token_data * n_vocab)()
    view = np.frombuffer(data, [("id", "i4"), ("logit", "f4"), ("p", "f4")])
    ids = np.arange(n_vocab, dtype=np.int32)

    def once() -> object:
        for row in target:
            view["id"], view["logit"] = ids, row
            array = lib.llama_token_data_array(data, n_vocab, -1, False)
            lib.llama_sampler_apply(chain, ctypes.byref(array))
        return array.selected

    return once


def _interleaved(
    a: Callable[[], object], b: Callable[[], object], repeats: int
) -> tuple[list[float], list[float]]:
    """Milliseconds of both, taken in turn: of processor time, which a busy machine changes less."""
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(repeats + 5):
        for function, found in zip((a, b), times, strict=True):
            started = time.thread_time()
            function()
            found.append(1e3 * (time.thread_time() - started))
    return times[0][5:], times[1][5:]


def _interval(values: Sequence[float]) -> tuple[float, float]:
    """The median's 95 % interval, by bootstrap."""
    rng = np.random.default_rng(0)
    drawn = np.median(rng.choice(values, (2000, len(values))), axis=1)
    low, high = np.quantile(drawn, [0.025, 0.975])
    return float(low), float(high)


# ---------------------------------------------------------------- what it brings


@contextmanager
def _pair(arguments: argparse.Namespace) -> Iterator[Engine]:
    how = ContextOptions(n_ctx=512, threads=arguments.threads)
    with (
        Model.load(arguments.target) as target_model,
        Model.load(arguments.draft) as draft_model,
        Context(target_model, how) as target,
        Context(draft_model, how) as draft,
    ):
        yield Engine(target, ModelDrafter(draft, target_model.n_vocab))


def _generate(
    engine: Engine, start: str, sampling: SamplingParams, accept: Accept, gamma: int = GAMMA
) -> list[Round]:
    """The rounds of one generation, without the first, which never drafts."""
    prompt = engine.target.model.tokenize(start, add_special=True, parse_special=False)
    cancel = Cancel()
    list(engine.prefill(prompt, cancel))
    settings = GenerateSettings(sampling=sampling, accept=accept, n_predict=120)
    return list(engine.generate(prompt, settings, FixedGamma(gamma), cancel))[1:]


def rounds(arguments: argparse.Namespace) -> None:
    """Tokens per round (accepted and one more) of every rule at gamma 4."""
    print("| temperature | rule | rounds | tokens per round | 95 % interval | acceptance |")
    print("|---|---|---|---|---|---|")
    with _pair(arguments) as engine:
        for temperature in (0.8, 1.0):
            for accept in (Accept.MATCH, Accept.COUPLED, Accept.TOKEN, Accept.BLOCK):
                clusters = [
                    np.array([(done.accepted + 1, done.drafted) for done in full])
                    for seed in range(arguments.n or 8)
                    for start in STARTS
                    if (
                        full := [
                            done
                            for done in _generate(
                                engine,
                                start,
                                SamplingParams(temperature=temperature, seed=1000 + seed),
                                accept,
                            )
                            if done.drafted == GAMMA
                        ]
                    )
                ]
                mean, low, high = _ratio(clusters)
                every = np.concatenate(clusters)
                accepted = (every[:, 0] - 1).sum() / every[:, 1].sum()
                print(
                    f"| {temperature} | {accept.value} | {len(every)} | {mean:.3f} |"
                    f" {low:.3f} to {high:.3f} | {accepted:.1%} |",
                    flush=True,
                )


def paired(arguments: argparse.Namespace) -> None:
    """Tokens per round from the same states: exact means over the rules' own draws.

    Token and block rule see the same sampled drafts. Under match the draft is the argmax, under
    coupled it is drawn with the shared noise. A state is a place in a text that the target wrote.
    """
    print(
        "| temperature | rule | states | tokens per round | 95 % interval | over the token rule |"
    )
    print("|---|---|---|---|---|---|")
    with _pair(arguments) as engine:
        for temperature in (0.8, 1.0):
            found = expected_rounds(engine, temperature, arguments.n or 400)
            for rule, values in found.items():
                mean, low, high = _mean(values)
                difference = [100 * (a - b) for a, b in zip(values, found["token"], strict=True)]
                share = [d / statistics.fmean(found["token"]) for d in difference]
                gain, least, most = _mean(share)
                over = "" if rule == "token" else f"{gain:+.1f} % ({least:+.1f} to {most:+.1f})"
                print(
                    f"| {temperature} | {rule} | {len(values)} | {mean:.3f} |"
                    f" {low:.3f} to {high:.3f} | {over} |",
                    flush=True,
                )


def expected_rounds(engine: Engine, temperature: float, states: int) -> dict[str, list[float]]:
    """For every rule the expected tokens per round at gamma 4, one number a state."""
    sampler = Sampler(SamplingParams(temperature=temperature))
    found: dict[str, list[float]] = {"match": [], "coupled": [], "token": [], "block": []}
    seed = 0
    while len(found["match"]) < states:
        start = STARTS[seed % len(STARTS)]
        ids = engine.target.model.tokenize(start, add_special=True, parse_special=False)
        sampling = SamplingParams(temperature=temperature, seed=seed)
        text = ids + [
            token
            for done in _generate(engine, start, sampling, Accept.MATCH, gamma=0)
            for token in done.tokens
        ]
        for length in range(len(ids) + seed % 5, len(text), 5):
            _one_state(engine, sampler, text[:length], seed, found)
        seed += 1
    return {rule: values[:states] for rule, values in found.items()}


def _one_state(
    engine: Engine,
    sampler: Sampler,
    prefix: list[int],
    seed: int,
    found: dict[str, list[float]],
) -> None:
    stream, counter = StreamNoise(seed), CounterNoise(seed)
    draft = _draft(engine, sampler, prefix, lambda q, _position: int(q.ids[0]))
    p = _target_rows(engine, sampler, prefix, draft)
    chain = np.cumprod([p[i].prob(token) for i, token in enumerate(draft.tokens)])
    found["match"].append(1 + float(chain.sum()))
    draft = _draft(engine, sampler, prefix, counter.pick)
    p = _target_rows(engine, sampler, prefix, draft)
    found["coupled"].append(1.0 + match_rule(draft, p, counter, len(prefix)).accepted)
    draft = _draft(engine, sampler, prefix, stream.pick)
    p = _target_rows(engine, sampler, prefix, draft)
    for rule in ("token", "block"):
        found[rule].append(1 + expected_accepted(rule, draft, p))


def expected_accepted(rule: str, draft: Draft, p: Sequence[Dist]) -> float:
    """The mean number of accepted tokens over the rule's own draws, from its own chances."""
    assert draft.q is not None
    if rule == "token":
        pairs = zip(draft.tokens, draft.q, p, strict=False)
        return float(np.cumprod([min(1, t.prob(x) / q.prob(x)) for x, q, t in pairs]).sum())
    weights = verify._block_weights(draft.tokens, draft.q, p)  # noqa: SLF001 - the rule's own
    left, total = 1.0, 0.0
    for i in range(len(weights) - 1, 0, -1):
        h = verify._block_chance(i, weights[i], draft.q, p)  # noqa: SLF001
        total += left * h * i
        left *= 1 - h
    return total


def _draft(
    engine: Engine, sampler: Sampler, prefix: list[int], pick: Callable[[Dist, int], int]
) -> Draft:
    drafter = engine.drafters[DRAFT]
    assert isinstance(drafter, ModelDrafter)
    context = drafter.context
    context.keep_prefix(prefix[:-1])
    new, tokens, rows = prefix[len(context.tokens) :], [], []
    while len(tokens) < GAMMA:
        q = sampler.row(context.decode(new, 1)[0], ())
        tokens.append(pick(q, len(prefix) + len(tokens)))
        rows.append(q)
        new = tokens[-1:]
    return Draft(tuple(tokens), tuple(rows))


def _target_rows(
    engine: Engine, sampler: Sampler, prefix: list[int], draft: Draft
) -> Sequence[Dist]:
    engine.target.keep_prefix(prefix[:-1])
    batch = [*prefix[len(engine.target.tokens) :], *draft.tokens]
    return list(sampler.rows(engine.target.decode(batch, GAMMA + 1), (), draft.tokens))


def _mean(values: Sequence[float]) -> tuple[float, float, float]:
    """The mean with its 95 % interval, by bootstrap."""
    rng = np.random.default_rng(0)
    drawn = rng.choice(values, (4000, len(values))).mean(axis=1)
    low, high = np.quantile(drawn, [0.025, 0.975])
    return statistics.fmean(values), float(low), float(high)


def _ratio(clusters: Sequence[np.ndarray]) -> tuple[float, float, float]:
    """Mean tokens per round with its 95 % interval, generations resampled whole."""
    tokens = np.array([cluster[:, 0].sum() for cluster in clusters], float)
    counts = np.array([len(cluster) for cluster in clusters], float)
    rng = np.random.default_rng(0)
    picks = rng.integers(0, len(clusters), (4000, len(clusters)))
    drawn = tokens[picks].sum(1) / counts[picks].sum(1)
    low, high = np.quantile(drawn, [0.025, 0.975])
    return float(tokens.sum() / counts.sum()), float(low), float(high)


def speed(arguments: argparse.Namespace) -> None:
    """Tokens per second under block over those under coupled, paired by start and seed."""
    print("| temperature | pairs | block / coupled | 95 % interval |")
    print("|---|---|---|---|")
    with _pair(arguments) as engine:
        for temperature in (0.8, 1.0):
            ratios = []
            for seed in range(arguments.n or 5):
                for i, start in enumerate(STARTS):
                    order = [Accept.BLOCK, Accept.COUPLED]
                    rates = {
                        accept: _rate(
                            _generate(
                                engine,
                                start,
                                SamplingParams(
                                    temperature=temperature,
                                    seed=seed,
                                    logit_bias=dict.fromkeys(
                                        engine.target.model.end_tokens, -np.inf
                                    ),
                                ),
                                accept,
                            )
                        )
                        for accept in (order if (i + seed) % 2 else reversed(order))
                    }
                    ratios.append(rates[Accept.BLOCK] / rates[Accept.COUPLED])
            low, high = _interval(ratios)
            print(
                f"| {temperature} | {len(ratios)} | {statistics.median(ratios):.3f} |"
                f" {low:.3f} to {high:.3f} |",
                flush=True,
            )


def _rate(done: Sequence[Round]) -> float:
    return sum(r.emitted for r in done) / sum(r.total_s for r in done)


def temperature(arguments: argparse.Namespace) -> None:
    """How often a token is accepted when the draft samples at another temperature or unfiltered."""
    print("| target's temperature | draft's q | token rule | coupled rule |")
    print("|---|---|---|---|")
    with _pair(arguments) as engine:
        logits = _both_logits(engine, arguments.n or 20)
        for own in (0.8, 1.0):
            target = Sampler(SamplingParams(temperature=own))
            p = [target.row(row, ()) for row, _ in logits]
            for factor in (0.6, 0.8, 0.9, 1.0, 1.1, 1.25):
                sampler = Sampler(SamplingParams(temperature=own * factor))
                _print_acceptance(own, f"temperature x {factor}", p, sampler, logits)
            bare = SamplingParams(temperature=own, top_k=0, top_p=1.0, min_p=0.0)
            _print_acceptance(own, "no filters", p, Sampler(bare), logits)


def _print_acceptance(own: float, name: str, p: list, sampler: Sampler, logits: list) -> None:  # type: ignore[type-arg]
    q = [sampler.row(row, ()) for _, row in logits]
    by_rule = [
        100 * statistics.fmean(agree(a, b) for a, b in zip(p, q, strict=True))
        for agree in (overlap, coupling)
    ]
    print(f"| {own} | {name} | {by_rule[0]:.2f} % | {by_rule[1]:.2f} % |")


def _both_logits(engine: Engine, n: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Rows of both models along `n` texts of the target."""
    found = []
    drafter = engine.drafters[DRAFT]
    assert isinstance(drafter, ModelDrafter)
    draft = drafter.context
    for seed in range(n):
        start = STARTS[seed % len(STARTS)]
        ids = engine.target.model.tokenize(start, add_special=True, parse_special=False)
        sampling = SamplingParams(temperature=1.0, seed=seed)
        done = _generate(engine, start, sampling, Accept.MATCH, gamma=0)
        ids += [token for one in done for token in one.tokens]
        for context in (engine.target, draft):
            context.clear()
        for token in ids:
            rows = [context.decode([token], 1)[0].copy() for context in (engine.target, draft)]
            found.append((rows[0], rows[1]))
    return found


def chi_square(arguments: argparse.Namespace) -> None:
    """The test's comparison with more seeds; above 1 would be a rejection at 1e-5."""
    from tests.test_lossless_engine import compare  # noqa: PLC0415 - needs the tests beside it

    print("| rule | seeds | chi-square over its limit, position 1, 2, 3 |")
    print("|---|---|---|")
    n = arguments.n or 20_000
    with Model.load(arguments.target) as target, Model.load(arguments.draft) as draft:
        for accept in (Accept.TOKEN, Accept.BLOCK, Accept.COUPLED):
            found = compare(target, draft, accept, n)
            shown = ", ".join(f"{x:.2f}" for x in found)
            print(f"| {accept.value} | {n} | {shown} |", flush=True)


PARTS: dict[str, Callable[[argparse.Namespace], None]] = {
    "cost": cost,
    "rounds": rounds,
    "paired": paired,
    "speed": speed,
    "temperature": temperature,
    "chi-square": chi_square,
}

if __name__ == "__main__":
    main()
