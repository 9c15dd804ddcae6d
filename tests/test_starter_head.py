"""The head that ships with localspec drafts for the starter's converted copy where that pays."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from localspec.chat.session.session import Session
from localspec.cli.subcommands import cli
from localspec.engine.cancel import Cancel
from localspec.engine.length.cost import Costs
from localspec.engine.length.gamma import AutoGamma
from localspec.engine.llama import kernels, machine
from localspec.loading.load import load_session
from localspec.loading.load_request import LoadRequest
from localspec.loading.measurements import draft_worth, ranking
from localspec.pairs.disk import installed, starter, trained_heads
from localspec.pairs.disk.starter import StarterForm
from localspec.pairs.gguf.gguf_writer import rewritten
from localspec.pairs.gguf.header import read_model
from localspec.pairs.hub.retries import RetryPolicy
from localspec.pairs.names import catalogue, resolver
from localspec.pairs.report import describe
from localspec.pairs.report.examine import examine
from localspec.train.head.shape import candidates
from localspec.train.recording import record

from .support import costs
from .support.gguf_models import write_random_llama
from .test_draft_too_dear import CURVE
from .test_train_parts import trained_head, untrained

ROOT = Path(__file__).resolve().parents[1]
FLAT = {n: 2e-3 * (1 + 0.02 * n) for n in (1, 2, 4, 8, 16, 64)}
STEEP = {n: 2e-3 * times for n, times in CURVE.items()}


@pytest.fixture
def copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, starter_file: Path) -> Path:
    """A random model in place of the starter's converted copy, with a head shipped for it."""
    monkeypatch.setenv("LOCALSPEC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("LOCALSPEC_DATA", str(tmp_path / "data"))
    starter.folder().mkdir(parents=True)
    target = write_random_llama(starter.converted())
    starter.remember(StarterForm(machine(), kernels(), target.stat().st_size))
    untrained(tmp_path / "raw.gguf", target, next(candidates(read_model(target).header)))
    head = tmp_path / starter.HEAD
    about = {trained_heads.TARGET: "as-it-was-trained.gguf", trained_heads.TARGET_HASH: "0" * 64}
    rewritten(tmp_path / "raw.gguf", head, about)
    monkeypatch.setattr(starter, "HEAD", str(head))  # an absolute path stays as it is
    return target


@contextmanager
def opened(**asked: Any) -> Iterator[Session]:
    request = LoadRequest(pair="starter", ctx_size=512, threads=1, **asked)
    session = load_session(request, progress=lambda *_: None, cancel=Cancel())
    try:
        yield session
    finally:
        session.close()


def test_the_head_is_that_of_the_copy_alone(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    head = Path(starter.HEAD)
    assert resolver.resolve("starter").drafts == (head,)
    assert resolver.resolve("starter", "lookup").drafts == ()
    assert resolver.resolve(str(copy), "starter").drafts == (copy,)  # a draft is its model
    own = trained_head(copy.parent, copy, 0.5)
    record((copy,), own)
    assert resolver.resolve("starter").drafts == (own,)  # one that was trained here comes first
    starter.remember(StarterForm(machine(), kernels(), copy_bytes=0))  # as it came, in Q4_1
    assert resolver.resolve("starter").drafts == ()


def test_without_a_head_in_the_package_lookup_alone_drafts(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(starter, "HEAD", "no-such-head.gguf")
    with opened() as session:
        assert session.drafters == ("lookup",)
        assert (session.draft_state, [*session.notices]) == ("", [])


def test_it_drafts_where_it_pays_and_says_nothing_of_its_file(copy: Path) -> None:
    costs.keep_target(FLAT, copy)
    with opened() as session:
        assert [*session.pair.drafts] == ["eagle3"]
        assert not any("made for another file" in each for each in session.notices)


@pytest.mark.parametrize("asked", [{}, {"draft_anyway": True}, {"gamma": 4}])
def test_it_is_not_loaded_where_no_head_pays(copy: Path, asked: dict[str, Any]) -> None:
    """The head must not make the starter slower, and is left out silently if not asked for."""
    costs.keep_target(STEEP, copy)
    with opened(**asked) as session:
        assert [*session.pair.drafts] == (["eagle3"] if asked else [])
        assert not any("left out" in each for each in session.notices)
        why = "the head that comes with localspec is left out: it would save no time here"
        assert session.draft_state.startswith(why) is (not asked)


@pytest.mark.parametrize(("accepted", "dear"), [(0.62, False), (0.35, True)])
def test_its_own_acceptance_decides(copy: Path, accepted: float, *, dear: bool) -> None:
    """Where a very good head would pay, one of which less is accepted may not."""
    head = read_model(trained_head(copy.parent, copy, accepted))
    auto = AutoGamma(Costs({0: {n: 1 + 0.4 * (n - 1) for n in (1, 2, 4, 8, 16, 64)}}, {}))
    assert draft_worth.too_dear(head, [copy], auto, 0.05) is dear
    trained_heads.remember(head, read_model(copy), 0.97 - accepted)  # by `train --check`
    assert draft_worth.too_dear(head, [copy], auto, 0.05) is not dear


def test_a_head_that_was_trained_here_is_told_to_be_left_out(copy: Path) -> None:
    """The reason is its acceptance, and its size only together with that."""
    costs.keep_target(STEEP, copy)
    record((copy,), head := trained_head(copy.parent, copy, 0.35))
    why = "saves no time here with 35 % of its first tokens accepted"
    with opened() as session:
        assert not session.pair.drafts
        assert session.draft_state.startswith(f"{head.name}: {why}, and not loaded")
        assert session.draft_state in session.notices
    shown = CliRunner().invoke(cli, ["show", "starter", "--no-scan"]).stdout
    assert f"draft       {why}: the next load without --draft-anyway leaves it out" in shown


@pytest.mark.parametrize("damaged", [float("nan"), float("inf"), -1.0, 7.0])
def test_an_acceptance_that_cannot_be_counts_as_unknown(copy: Path, damaged: float) -> None:
    head = read_model(trained_head(copy.parent, copy, damaged))
    made = trained_heads.made_for(head.header)
    assert made is not None
    assert made.accepted is None


def test_lists_and_show_name_it(copy: Path) -> None:
    row, size = catalogue.rows()[0], Path(starter.HEAD).stat().st_size
    assert (row.draft, row.drafter, row.draft_bytes) == (starter.HEAD, "draft", size)
    assert row.n_bytes == copy.stat().st_size + size
    drafting = f"with {Path(starter.HEAD).name} where that pays; what repeats is copied"
    assert row.evidence.startswith(drafting)
    shown = CliRunner().invoke(cli, ["show", "starter", "--no-scan"]).stdout
    assert f"drafting    {drafting}" in shown
    shown = CliRunner().invoke(cli, ["show", "starter", "--draft", "none", "--no-scan"]).stdout
    assert "drafting    " not in shown
    own = trained_head(copy.parent, copy, 0.5)
    name = record((copy,), own)
    assert catalogue.rows()[0].draft == str(own)
    assert catalogue.rows()[0].accepted == 0.5
    assert row.accepted is None  # this shipped head does not say
    installed.forget(name)
    report = examine("starter", None, RetryPolicy(), scan=False)
    (line,) = [each for each in describe.lines(report) if each.startswith("draft ")]
    assert "it comes with localspec" in line
    assert "eagle3" in line
    target, head = (
        replace(each, licence=spelt)
        for each, spelt in zip(report.models, ("Apache-2.0", "apache-2.0"), strict=True)
    )
    assert describe.licence_line(replace(report, target=target, draft=head)) == "Apache-2.0"


def test_lists_say_that_it_does_not_pay(copy: Path) -> None:
    costs.keep_target(STEEP, copy)
    with opened():
        one = next(iter(ranking.ranked(catalogue.rows(), ranking.recall())))
    assert one.measured
    assert one.speed.endswith(" tokens/s (its draft is not expected to pay here)")


def test_the_wheel_has_what_the_checkout_has() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    included = project["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    file = ROOT / "models" / starter.HEAD
    assert (included.get(f"models/{starter.HEAD}") is not None) is file.is_file()
    assert not file.is_file() or file.stat().st_size <= 20_000_000
