"""A bench that asks a single question, for what it loads and drafts rather than for its figures."""

from __future__ import annotations

from localspec.bench.benchmark import bench_pair
from localspec.bench.prompt_sets import BenchRequest
from localspec.bench.result import BenchReport
from localspec.engine.cancel import Cancel
from localspec.loading.load_request import LoadRequest
from tests.support import toy


def short_bench(options: LoadRequest, *drafts: str) -> BenchReport:
    """Bench `drafts` for the target of `options`; answers have 8 tokens, drafts at most 2."""
    wanted = BenchRequest(
        prompts=toy.questions(1),
        repeats=1,
        n_predict=8,
        temperature=0.0,
        seed=1,
        gamma=2,
        drafts=drafts,
    )

    def ignore(*_: object) -> None: ...

    return bench_pair(options, wanted, Cancel(), progress=ignore, asking=ignore, warn=ignore)
