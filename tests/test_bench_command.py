"""`localspec bench` from the command line."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from itertools import combinations
from pathlib import Path
from typing import Any, cast

import pexpect
import pytest
from click.testing import CliRunner

from localspec.bench import benchmark, prompt_sets
from localspec.bench.prompt_sets import BenchRequest
from localspec.bench.result import BenchReport
from localspec.cli.machine import bench_output
from localspec.cli.standard_streams import ProgressLine
from localspec.cli.subcommands import cli
from localspec.engine.cancel import Cancel
from localspec.errors import Cancelled, LocalspecError, UsageError
from localspec.loading.load_request import LoadRequest
from localspec.process.engine_client import JobClient
from localspec.process.messages import BenchProgress
from tests.support import bench_reports, costs, toy

QUESTIONS = ("--prompts", str(toy.QUESTIONS))
QUICKLY = ("--repeat", "1", "-n", "8", "--gamma", "2", "-t", "1", "-c", "256")
SUMS = (*QUESTIONS, "--kinds", "sums", *QUICKLY)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCALSPEC_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the engine in this process, where a test can replace its parts."""
    monkeypatch.setenv("LOCALSPEC_ENGINE", "inline")


@pytest.fixture
def at_once(scripted: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `scripted`; the bench does not wait for the machine to become quiet."""
    monkeypatch.setattr(benchmark, "wait_for_calm", lambda *_: 0.0)


def bench(*arguments: str) -> Any:
    return CliRunner().invoke(cli, ["bench", *arguments], catch_exceptions=False)


@pytest.mark.slow
@pytest.mark.usefixtures("at_once")
def test_it_reports_and_writes_every_kind_of_file(tmp_path: Path) -> None:
    paths = [str(tmp_path / f"report.{ending}") for ending in ("json", "csv", "md", "svg", "png")]
    done = bench("toy", *SUMS, *(word for path in paths for word in ("-o", path)))
    assert done.exit_code == 0
    for said in ("sums", "all", "Verdict", "T(n)", "Where the time goes", "sha256"):
        assert said in done.stdout
    assert "\x1b" not in done.stdout + done.stderr
    assert "of 7: line-2" in done.stderr
    assert all(Path(path).stat().st_size > 200 for path in paths)
    compared = bench("--compare", paths[0], paths[0])
    assert "The speed-up of on: no more than noise" in compared.stdout
    as_json = json.loads(bench("--compare", paths[0], paths[0], "--json").stdout)
    assert as_json["different"] == []


@pytest.mark.usefixtures("at_once")
def test_json_has_it_all_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    costs.keep_toy()
    monkeypatch.setattr(benchmark, "TARGET_SIZES", (1, 2, 4, 8, 16))
    monkeypatch.setattr(benchmark, "DRAFT_SIZES", (1, 2, 16))
    document = json.loads(bench("toy", *SUMS, "--json").stdout)
    assert document["format"] == 1
    assert len(document["runs"]) == 14
    assert document["settings"]["gamma"] == 2
    assert document["verdict"]


@pytest.mark.slow
@pytest.mark.usefixtures("at_once")
def test_own_prompts_and_a_draft_of_none(tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    path.write_text('{"prompt": "Tell me a story about a dog.", "kind": "tale"}\n')
    done = bench("toy", "--draft", "none", "--prompts", str(path), *QUICKLY)
    assert done.exit_code == 0
    assert "Without drafting" in done.stdout
    assert "tale" in done.stdout
    assert "Drafting was not measured" in done.stdout


@pytest.mark.usefixtures("scripted")
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("-o", "nowhere/at/all.json"), "cannot write"),
        (("-o", "report.pdf"), "no ending"),
        (("--kinds", "poems"), "no kind 'poems'"),
        (("--target", "toy"), "say the same"),
        (("--draft", "none", "--drafts", "none"), "say the same"),
        (("--temp", "-1"), "temperature"),
    ],
)
def test_wrong_requests_end_before_anything_is_measured(
    arguments: tuple[str, ...], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError("measured all the same")

    monkeypatch.setattr("localspec.bench.benchmark.bench", never)
    with pytest.raises(LocalspecError, match=said):
        bench("toy", *QUICKLY, *arguments)


@pytest.mark.usefixtures("scripted")
def test_a_bad_file_of_prompts_is_found_before_the_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "own.jsonl"
    path.write_text('{"prompt": "a"}\n{"prompt"}\n')
    monkeypatch.setattr("localspec.bench.benchmark.bench_pair", None)
    with pytest.raises(LocalspecError, match="line 2"):
        bench("toy", "--prompts", str(path))
    os.truncate(path, 65 << 20)
    with pytest.raises(LocalspecError, match="larger than 64 MB"):
        bench("toy", "--prompts", str(path))
    with pytest.raises(UsageError, match="no kind 'poems'"):
        bench("--kinds", "poems")
    path.write_text('{"prompt": "a", "kind": "b"}\n')
    with pytest.raises(UsageError, match="no kind 'c' among"):
        bench("toy", "--prompts", str(path), "--kinds", "b,c")


@pytest.mark.usefixtures("scripted")
def test_a_file_that_cannot_be_written_any_more_loses_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone, kept = tmp_path / "gone" / "report.md", tmp_path / "report.md"
    gone.parent.mkdir()

    def measured(*_: object, **__: object) -> BenchReport:
        gone.parent.rmdir()
        return bench_reports.report()

    monkeypatch.setattr("localspec.bench.benchmark.bench_pair", measured)
    done = CliRunner().invoke(cli, ["bench", "toy", "-o", str(gone), "-o", str(kept)])
    assert isinstance(done.exception, LocalspecError)
    assert f"cannot write {gone}" in done.exception.message
    assert "Verdict" in done.stdout
    assert "Without drafting" in kept.read_text()


@pytest.mark.usefixtures("scripted")
def test_no_file_takes_the_place_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("localspec.bench.benchmark.bench_pair", None)
    path, same = tmp_path / "mine.json", tmp_path / ".." / tmp_path.name / "mine.json"
    path.write_text('{"prompt": "a"}\n')
    for option in ("--prompts", "--share"):
        with pytest.raises(UsageError, match=r"mine\.json is named twice"):
            bench("toy", option, str(path), "-o", str(same))
    assert path.read_text() == '{"prompt": "a"}\n'


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (("toy",), "PAIR"),
        (("-o", "report.json"), "--output"),
        (("--share", "mine.json"), "--share"),
        (("-n", "8"), "--n-predict"),
    ],
)
def test_a_comparison_refuses_what_it_would_ignore(typed: tuple[str, ...], said: str) -> None:
    with pytest.raises(UsageError, match=f"{said} does not go with --compare"):
        bench("--compare", "old.json", "new.json", *typed, "--json")


@pytest.mark.usefixtures("scripted")
def test_it_waits_for_a_calm_moment_as_tune_does(monkeypatch: pytest.MonkeyPatch) -> None:
    def wait(*_: Any) -> float:
        raise LocalspecError("enough")

    monkeypatch.setattr(benchmark, "wait_for_calm", wait)
    for how in ([], ["--quick"]):
        with pytest.raises(LocalspecError, match="enough"):
            bench("toy", *how)
    for wrong in (["nosuch.gguf"], ["toy", "--drafts", "lookup,nosuch.gguf"]):
        with pytest.raises(LocalspecError, match="nosuch"):  # said at once
            bench(*wrong)


@pytest.mark.usefixtures("scripted")
def test_what_is_shared_is_not_measured_on_a_busy_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(benchmark, "wait_for_calm", lambda *_: 1.2)
    monkeypatch.setattr(benchmark, "load_session", pytest.fail)
    with pytest.raises(LocalspecError, match=r"other programs keep 1\.2 cores busy"):
        bench("toy", "--share", str(tmp_path / "mine.json"))


@pytest.mark.usefixtures("scripted")
def test_the_wait_takes_nothing_from_the_questions_and_a_busy_machine_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = iter([100.0, 112.0])
    monkeypatch.setattr(benchmark, "perf_counter", lambda: next(now))
    monkeypatch.setattr(benchmark, "wait_for_calm", lambda *_: 1.2)
    asked: list[BenchRequest] = []

    def measured(_sessions: Any, request: BenchRequest, *_: Any, **__: Any) -> BenchReport:
        asked.append(request)
        return bench_reports.report()

    monkeypatch.setattr(benchmark, "bench", measured)
    wanted = bench_reports.request(deadline=145.0)
    options = LoadRequest(pair="toy", gamma="auto", threads=1, ctx_size=256, seed=1)
    report = benchmark.bench_pair(
        options,
        wanted,
        Cancel(),
        progress=lambda *_: None,
        asking=lambda *_: None,
        warn=lambda _: None,
    )
    assert asked[0].deadline == 157.0
    assert report.busy_cores == 1.2
    assert report.verdict[-1].startswith("Other programs kept 1.2 cores busy")


@pytest.mark.usefixtures("scripted")
def test_a_stop_that_ended_the_reader_too_loses_no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl+C reaches `| tee` as well."""

    def gone(_: str) -> None:
        raise BrokenPipeError

    made = bench_reports.report(ended="interrupted", verdict=("It was interrupted.",))
    monkeypatch.setattr("localspec.bench.benchmark.bench_pair", lambda *_, **__: made)
    monkeypatch.setattr("localspec.cli.machine.bench_output.write", gone)
    done = CliRunner().invoke(cli, ["bench", "toy"])
    assert isinstance(done.exception, Cancelled)
    assert "Verdict\nIt was interrupted." in done.stderr


@pytest.mark.usefixtures("scripted")
def test_a_stop_waits_for_the_report_as_long_as_it_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A card ends no pass in the middle, and one over a long prompt takes seconds."""
    made = bench_reports.report(ended="interrupted", verdict=("It was interrupted.",))

    def measured(_: LoadRequest, __: BenchRequest, cancel: Cancel, **___: object) -> BenchReport:
        os.kill(os.getpid(), signal.SIGINT)
        while not cancel.is_set():
            time.sleep(0.01)
        time.sleep(0.5)
        return made

    gone: list[int] = []
    monkeypatch.setattr("localspec.bench.benchmark.bench_pair", measured)
    monkeypatch.setattr("localspec.cli.interrupt.GRACE_S", 0.05)
    monkeypatch.setattr("localspec.cli.interrupt.os._exit", gone.append)
    path = tmp_path / "kept.json"
    done = CliRunner().invoke(cli, ["bench", "toy", "-o", str(path)])
    assert isinstance(done.exception, Cancelled)
    assert not gone
    assert "Ctrl+C once more gives up the report" in done.stderr
    assert json.loads(path.read_text())["ended"] == "interrupted"


def test_progress_that_comes_after_a_stop_hides_no_line_about_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Stopped:
        stopped = True

        def result(self, _: object, hear: Any, stopping: Any) -> None:
            stopping()
            hear(BenchProgress(done=1, total=9, prompt="late", left_s=3.0))
            raise Cancelled

    drawn: list[str] = []
    monkeypatch.setattr(ProgressLine, "show", lambda _, text: drawn.append(text))
    with pytest.raises(Cancelled):
        bench_output.print_bench(cast(JobClient, Stopped()), as_json=False, outputs=[])
    assert drawn == ["Stopping; Ctrl+C once more gives up the report ..."]


@pytest.mark.usefixtures("scripted")
def test_chosen_kinds_of_a_quick_bench_are_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[BenchRequest] = []

    def measured(_: LoadRequest, request: BenchRequest, *__: object, **___: object) -> BenchReport:
        asked.append(request)
        return bench_reports.report()

    monkeypatch.setattr(benchmark, "bench_pair", measured)
    assert bench("toy", "--quick", "--kinds", "conversion").exit_code == 0
    assert asked[0].prompts.kinds == ("conversion",)
    assert len(asked[0].prompts.prompts) == 16


@pytest.mark.parametrize("sweep", ["12..0", "a..b", "1,,2", "", "0..64", "-1"])
def test_a_sweep_that_makes_no_sense_is_wrong_usage(sweep: str) -> None:
    done = CliRunner().invoke(cli, ["bench", "toy", f"--gamma-sweep={sweep}"])
    assert done.exit_code == 2


def test_a_target_named_twice_is_wrong_usage() -> None:
    with pytest.raises(UsageError):
        bench("toy", "--target", "toy")


@pytest.mark.slow
@pytest.mark.timed  # on a busy machine a bench waits 20 seconds first
@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
def test_ctrl_c_reports_what_is_done(tmp_path: Path) -> None:
    path = tmp_path / "kept.json"
    words = ["-m", "localspec", "bench", "toy", *QUESTIONS, "-t", "1", "-n", "64", "--gamma", "2"]
    child = pexpect.spawn(
        sys.executable,
        [*words, "--repeat", "500", "-o", str(path)],
        env=os.environ | {"LOCALSPEC_CACHE": str(tmp_path)},
        encoding="utf-8",
        timeout=60,
    )
    try:
        child.expect("about .* left")  # so something has been measured
        child.sendintr()
        child.expect("The run was interrupted: this reports what was measured until then.")
        child.expect(pexpect.EOF)
        child.wait()
    finally:
        child.close(force=True)
    assert child.exitstatus == 130
    document = json.loads(path.read_text())
    assert document["ended"] == "interrupted"
    assert len(document["runs"]) >= 2
    assert len(document["runs"]) % 2 == 0


@pytest.mark.slow
@pytest.mark.drawn
@pytest.mark.usefixtures("at_once")
def test_quick_runs_agree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of three runs agree, if the machine's speed stays the same that long.

    An interval covers the choice of prompts, not a machine that other programs use as well: its
    speed may differ in one run of three. So there are up to seven runs, until three of them found
    the machine at about the same speed.
    """
    monkeypatch.setattr(prompt_sets, "QUICK_S", 15.0)
    runs: list[tuple[float, dict[str, float]]] = []
    alike: list[dict[str, float]] = []
    while not alike and len(runs) < 7:
        path = tmp_path / f"{len(runs)}.json"
        done = bench("toy", "--quick", *QUESTIONS, "-t", "1", "-o", str(path))
        assert done.exit_code == 0
        document = json.loads(path.read_text())
        on = next(arm for arm in document["arms"] if arm["name"] == "on")
        baseline = document["arms"][0]["overall"]["tokens_per_second"]
        runs = sorted([*runs, (baseline, on["overall"]["speedup"])], key=lambda run: run[0])
        for three in zip(runs, runs[1:], runs[2:], strict=False):
            if three[-1][0] <= 1.5 * three[0][0]:
                alike = [speedup for _, speedup in three]
    if not alike:
        pytest.skip(
            f"the machine was never the same: {[baseline for baseline, _ in runs]} tokens/s"
        )
    pairs = combinations(alike, 2)
    assert any(a["low"] <= b["high"] and b["low"] <= a["high"] for a, b in pairs), alike
