"""`localspec run` on real models: what the document promises, and every kind of bad input."""

from __future__ import annotations

import io
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from localspec.chat.events import Origin, PromptProgress, RoundText, Span
from localspec.chat.figures.slowness import SlownessCheck
from localspec.chat.session.session import Session
from localspec.chat.settings import ChatSettings
from localspec.cli import main
from localspec.cli.answers.answer_output import _SaidText, _stream, print_answer
from localspec.cli.standard_streams import ProgressLine, read_prompt
from localspec.cli.subcommands import cli
from localspec.engine.cancel import Cancel
from localspec.engine.record.stats import FinishReason
from localspec.errors import (
    Cancelled,
    EngineDied,
    LocalspecError,
    NotOnHub,
    OutOfMemory,
)
from localspec.loading.load import load_session
from localspec.loading.load_request import LoadRequest
from localspec.loading.results import BrokenAnswer
from localspec.pairs.memory.placement import LARGEST_CTX, PROGRAM
from localspec.process.messages import Loaded, ToolsCalled, TurnReported
from localspec.safe_text import save_as_utf8
from tests.fakes import round_of
from tests.support import GOES_ON, gguf_models

STORY = "Tell me a story about a dog."
FIELDS = {
    *("text", "tokens", "finish_reason", "prompt_tokens", "generated_tokens"),
    *("tokens_per_second", "time_to_first_token_s", "drafted_tokens", "accepted_tokens"),
    *(
        "acceptance_rate",
        "mean_tokens_per_round",
        "speedup",
        "rounds",
        "prefill",
        "peak_memory_bytes",
    ),
    *("settings", "notices", "drafters", "thought", "calls"),
}


def test_at_a_terminal_it_says_how_the_prompt_ends_and_where_a_conversation_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    terminal = io.TextIOWrapper(io.BytesIO(b"Hello?\n"))
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stdin", terminal)
    assert read_prompt() == "Hello?"
    said = capsys.readouterr().err
    assert "end it with Ctrl+D" in said
    assert "For a conversation: localspec chat\n" in said


def test_a_word_that_names_no_pair_is_refused_before_its_prompt_is_typed() -> None:
    done = CliRunner().invoke(cli, ["run", "hallo"], input="What is this?")
    assert isinstance(done.exception, NotOnHub)
    assert 'To ask: localspec run -p "hallo"' in done.exception.remedy


@dataclass
class Done:
    """A command's exit code and output."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        assert self.code == 0, self.err
        document: dict[str, Any] = json.loads(self.out)
        return document


Run = Callable[..., Done]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run `localspec run` in this process, its engine in a thread.

    The engine has one thread: two that share cores with other programs wait for each other.
    """

    # With a process for each engine this would take ten times as long; `process` and
    # tests/test_jobs.py test that.
    monkeypatch.setenv("LOCALSPEC_ENGINE", "inline")

    def invoke(*arguments: str) -> Done:
        threads = () if "-t" in arguments else ("-t", "1")
        monkeypatch.setattr(sys, "argv", ["localspec", "run", *threads, *arguments])
        with pytest.raises(SystemExit) as exit_:
            main()
        captured = capsys.readouterr()
        code = exit_.value.code
        return Done(code if isinstance(code, int) else 0, captured.out, captured.err)

    return invoke


@pytest.fixture
def story(run: Run) -> Callable[..., dict[str, Any]]:
    """Run the story prompt and return its document."""
    return lambda *arguments: run("toy", "-p", STORY, "--json", *arguments).document


def process(*arguments: str, **options: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "localspec", "run", "-t", "1", *arguments],
        stdin=options.pop("stdin", subprocess.DEVNULL),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        **options,
    )


def finished(running: subprocess.Popen[bytes], stdin: bytes | None = None) -> Done:
    out, err = running.communicate(stdin, timeout=60)
    return Done(running.returncode, out.decode(), err.decode())


def fails(done: Done, *words: str, code: int = 1) -> None:
    """The command failed with a message that has these words, a remedy, and nothing else."""
    assert done.code == code
    assert done.out == ""
    assert done.err.startswith("error: ")
    assert "Traceback" not in done.err
    assert len(done.err.splitlines()) == 2
    for word in words:
        assert word in done.err


# What must hold.


@pytest.mark.slow
@pytest.mark.parametrize("threads", ["1", "-1"])
def test_greedy_tokens_are_those_of_the_baseline(run: Run, threads: str) -> None:
    arguments = ("toy", "-p", STORY, "--temp", "0", "-n", "40", "--json", "-t", threads, "--gamma")
    baseline, document = run(*arguments, "0").document, run(*arguments, "4").document
    assert document["tokens"] == baseline["tokens"]
    assert document["accepted_tokens"] > baseline["drafted_tokens"] == 0
    assert baseline["acceptance_rate"] is None


@pytest.mark.slow
def test_a_seed_repeats_the_tokens(story: Callable[..., dict[str, Any]]) -> None:
    seeded = ("--temp", "0.8", "--seed", "7", "--gamma", "4", "-n", "60")
    assert story(*seeded)["tokens"] == story(*seeded)["tokens"]


def test_the_document_is_complete_and_adds_up(story: Callable[..., dict[str, Any]]) -> None:
    document = story("--temp", "0", "-n", "40", "--gamma", "3", "--system-prompt", "Be brief.")
    assert set(document) == FIELDS
    rounds = document["rounds"]
    assert set(rounds[0]) == {
        *("gamma", "drafter", "drafted", "accepted", "emitted", "draft_s", "verify_s")
    }
    for field in ("drafted", "accepted"):
        assert sum(done[field] for done in rounds) == document[f"{field}_tokens"]
    assert [done["drafter"] for done in rounds[:3]] == ["", "draft", "draft"]
    assert list(document["drafters"]) == ["draft"]
    for field in ("drafted", "accepted"):
        assert document["drafters"]["draft"][field] == document[f"{field}_tokens"]
    drafting = sum(done["draft_s"] for done in rounds if done["drafter"])
    assert document["drafters"]["draft"]["seconds"] == pytest.approx(drafting)
    assert sum(done["emitted"] for done in rounds) == document["generated_tokens"] == 40
    assert len(document["tokens"]) == 40
    assert document["finish_reason"] == "length"
    assert document["mean_tokens_per_round"] == pytest.approx(40 / len(rounds))
    assert document["tokens_per_second"] > 0
    assert document["time_to_first_token_s"] > 0
    assert document["peak_memory_bytes"] > 10_000_000
    prefill = document["prefill"]
    # The last prompt token is decoded by the first round.
    assert prefill["target"] == {"cached": 0, "decoded": document["prompt_tokens"] - 1}
    assert prefill["draft"]["decoded"] > document["prompt_tokens"]
    settings = document["settings"]
    assert settings["pair"] == "toy"
    assert (settings["temp"], settings["accept"], settings["gamma"]) == (0, "match", 3)
    assert settings["system_prompt"] == "Be brief."
    assert settings["seed"] >= 0
    assert settings["threads"] >= 1


def test_gamma_auto_says_what_it_means(story: Callable[..., dict[str, Any]]) -> None:
    settings = story("-n", "2")["settings"]
    assert settings["gamma"] == "auto"
    assert settings["gamma_note"]


def test_the_text_streams_and_figures_go_to_stderr(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SlownessCheck, "busy", lambda _: "other programs are busy")
    document = run("toy", "-p", STORY, "--temp", "0", "-n", "20", "--json").document
    done = run("toy", "-p", STORY, "--temp", "0", "-n", "20", "--stats")
    assert done.code == 0
    assert done.out == document["text"].rstrip("\n") + "\n"
    assert "acceptance rate" in done.err
    assert "20 tokens" in done.err
    assert "other programs are busy" in done.err


@pytest.mark.few(1)
@pytest.mark.parametrize("gamma", ["3", "auto"])
def test_lossy_stands_beside_the_speed(run: Run, gamma: str) -> None:
    how = ("-n", "20", "--gamma", gamma, "--seed", "1")
    lossy = run("toy", "-p", STORY, *how, "--lossy", "0.5", "--stats").err
    assert "tokens/s (lossy 0.5)" in lossy
    assert "lossy" not in run("toy", "-p", STORY, *how, "--stats").err
    document = run("toy", "-p", STORY, *how, "--lossy", "0.5", "--json").document
    assert document["settings"]["lossy"] == 0.5
    assert document["settings"]["accept"] == "lossy"


def test_a_template_of_ones_own_takes_the_place_of_the_models(run: Run, tmp_path: Path) -> None:
    (tmp_path / "own.jinja").write_text("Once upon a{{ messages[0]['content'] }}", "utf-8")
    how = ("--chat-template", str(tmp_path / "own.jinja"), "--temp", "0", "-n", "4")
    assert run("toy", "-p", " time, there", *how).out.startswith(" was a")
    (tmp_path / "own.jinja").write_text("{{ raise_exception('not this') }}", "utf-8")
    done = run("toy", "-p", "hi", *how)
    assert done.code == 1
    assert "not this" in done.err


def test_the_answer_ends_by_itself_or_at_a_stop_string(run: Run) -> None:
    long = run("toy", "-p", STORY, "--temp", "0", "-n", "60", "--json").document
    stop = long["text"].split()[6]
    cut = run("toy", "-p", STORY, "--temp", "0", "--stop", stop, "--json").document
    assert cut["finish_reason"] == "stop"
    assert cut["text"] == long["text"][: long["text"].index(stop)]
    assert cut["tokens"] == long["tokens"][: len(cut["tokens"])]


def test_a_full_context_ends_the_answer(run: Run) -> None:
    document = run("toy", "-p", STORY, "--temp", "0", "-c", "40", "--json", "--stop", "\0").document
    total = document["prompt_tokens"] + document["generated_tokens"]
    assert document["finish_reason"] in {"context", "stop"}
    assert total == 41 or document["finish_reason"] == "stop"


def test_nothing_is_predicted_when_nothing_is_wanted(run: Run) -> None:
    document = run("toy", "-p", STORY, "-n", "0", "--json").document
    assert (document["text"], document["finish_reason"]) == ("", "length")


def test_the_baseline_without_a_draft(run: Run) -> None:
    document = run("toy", "--draft", "none", "-p", STORY, "-n", "5", "--json").document
    assert document["drafted_tokens"] == 0
    assert "none was wanted" in document["settings"]["draft_note"]


# Sessions on the real pair.


@pytest.fixture
def session() -> Session:
    loaded = load_session(
        LoadRequest(pair="toy", temp=0, gamma=3, n_predict=24, ctx_size=1024, threads=1),
        progress=lambda _step, _share: None,
        cancel=Cancel(),
    )
    yield loaded  # type: ignore[misc]
    loaded.close()


def test_the_second_turn_reads_only_new_tokens_for_both_models(session: Session) -> None:
    *_, first = session.turn(STORY, Cancel())
    *_, second = session.turn("And then?", Cancel())
    before = first.stats.prompt_tokens + first.stats.generated_tokens
    new = second.stats.prompt_tokens - before
    assert 0 < new < 30
    # All but the last token of the first answer is cached; the prompt's last token is decoded by
    # the first round, not by the prefill.
    assert second.stats.prefill_cached == before - 1
    assert second.stats.prefill_decoded == new
    # After a fully accepted draft the draft model lacks the last drafted token and the bonus, and
    # one more if no room was left to draft. It also reads the new answer's first token.
    assert before - 3 <= second.stats.draft_cached <= before
    assert second.stats.draft_prefill <= new + 4


def test_a_turn_can_be_stopped_and_the_next_one_goes_on(session: Session) -> None:
    session.settings.n_predict = -1
    cancel = Cancel()
    for _event in session.turn(STORY, cancel):
        if session.figures().generated > 5:
            cancel.set()
    assert session.messages[-1].finish == "cancelled"
    assert session.messages[-1].content
    session.settings.n_predict = 5
    *_, end = session.turn("Go on.", Cancel())
    assert end.stats.prefill_cached > 5


@pytest.mark.timed
def test_memory_counts_both_models(session: Session, toy_target: Path, toy_draft: Path) -> None:
    memory = session.memory()
    assert memory.target_weights == pytest.approx(toy_target.stat().st_size, rel=0.3)
    assert memory.draft_weights == pytest.approx(toy_draft.stat().st_size, rel=0.3)
    assert memory.target_cache > memory.draft_cache > 0
    started = time.perf_counter()
    for _ in range(10):
        session.memory()
    assert time.perf_counter() - started < 0.5


def test_loading_reports_progress(toy_target: Path) -> None:
    steps: list[tuple[str, float | None]] = []
    loaded = load_session(
        LoadRequest(pair="toy", threads=1),
        progress=lambda step, share: steps.append((step, share)),
        cancel=Cancel(),
    )
    loaded.close()
    assert any(toy_target.name in step for step, _ in steps)
    assert any(share == 1 for _, share in steps)
    assert loaded.pair.target.n_ctx <= LARGEST_CTX


def test_loading_can_be_cancelled() -> None:
    cancel = Cancel()
    with pytest.raises(Cancelled):
        load_session(
            LoadRequest(pair="toy"), progress=lambda _step, _share: cancel.set(), cancel=cancel
        )


@pytest.mark.few(1)
@pytest.mark.parametrize("recurrent", ["target", "draft"])
def test_a_recurrent_model_is_drafted_for_and_drafts(
    tmp_path: Path, toy_target: Path, toy_draft: Path, recurrent: str
) -> None:
    mamba = gguf_models.write_random_mamba(tmp_path / "mamba.gguf")
    target, draft = (mamba, toy_draft) if recurrent == "target" else (toy_target, mamba)
    loaded = load_session(
        LoadRequest(pair=str(target), draft=str(draft), n_predict=12, gamma=4, temp=0, threads=1),
        progress=lambda _step, _share: None,
        cancel=Cancel(),
    )
    *_, end = loaded.turn("hi", Cancel())
    assert end.stats.drafted_tokens > 0
    loaded.speculation = False
    *_, again = loaded.regenerate(Cancel())
    assert again.stats.drafted_tokens == 0
    assert again.text == end.text
    loaded.close()


@pytest.mark.few(1)
@pytest.mark.parametrize("recurrent", ["target", "draft"])
def test_where_no_state_can_be_restored_nothing_is_drafted_and_the_reason_shown(
    tmp_path: Path,
    toy_target: Path,
    toy_draft: Path,
    recurrent: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("llama_cpp.llama_cpp.llama_state_seq_set_data_ext", lambda *_: 0)
    mamba = gguf_models.write_random_mamba(tmp_path / "mamba.gguf")
    target, draft = (mamba, toy_draft) if recurrent == "target" else (toy_target, mamba)
    loaded = load_session(
        LoadRequest(pair=str(target), draft=str(draft), n_predict=3, threads=1),
        progress=lambda _step, _share: None,
        cancel=Cancel(),
    )
    assert not loaded.speculation
    assert "cannot take back" in loaded.speculation_note
    *_, end = loaded.turn("hi", Cancel())
    assert end.stats.drafted_tokens == 0
    loaded.close()


# Bad input.


def test_a_missing_file(run: Run) -> None:
    fails(run("./nowhere.gguf", "-p", "hi"), "nowhere.gguf", "does not exist")


def test_an_unknown_name(run: Run) -> None:
    fails(run("toyy", "-p", "hi"), "toyy", "Did you mean toy?")


def test_no_gguf(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "page.gguf"
    path.write_text("<!doctype html><html></html>")
    fails(run(str(path), "-p", "hi"), "not a GGUF")


@pytest.mark.parametrize("kept", [0, 3, 1000, 1_000_000])
def test_a_truncated_gguf(run: Run, tmp_path: Path, toy_target: Path, kept: int) -> None:
    path = tmp_path / "cut.gguf"
    path.write_bytes(toy_target.read_bytes()[:kept])
    fails(run(str(path), "-p", "hi"), "cut.gguf")


@pytest.mark.slow
def test_a_draft_of_another_vocabulary_drafts_through_the_text(run: Run, tmp_path: Path) -> None:
    other = gguf_models.write_renumbered(tmp_path / "other.gguf", fewer=1000)
    asked = ("-n", "24", "--temp", "0", "--json", "--gamma", "3", "-p", "Tell me a story.")
    alone, done = run("toy", "--draft", "none", *asked), run("toy", "--draft", str(other), *asked)
    assert done.code == alone.code == 0, done.err
    told = json.loads(done.out)
    assert told["text"] == json.loads(alone.out)["text"]
    assert told["drafters"]["translated"]["accepted"] > 3
    assert {each["drafter"] for each in told["rounds"]} <= {"", None, "translated"}


def test_a_draft_that_cannot_write_text_says_which_rule_failed(run: Run, tmp_path: Path) -> None:
    words = gguf_models.other_vocabulary()
    words = replace(words, tokens=tuple(f"{token}." for token in words.tokens))
    other = gguf_models.write_llama(
        tmp_path / "words.gguf", words, gguf_models.Sizes(), seed=0, type="q8_0"
    )
    fails(run("toy", "--draft", str(other), "-p", "hi"), "cannot serve this target", "--draft none")


def test_an_embedding_model_as_target_or_draft(run: Run, tmp_path: Path) -> None:
    model = gguf_models.write_embedding_model(tmp_path / "bert.gguf")
    fails(run(str(model), "-p", "hi"), "embedding model", "writes no text")
    fails(run("toy", "--draft", str(model), "-p", "hi"), "embedding model")


def test_a_prompt_longer_than_the_context(run: Run) -> None:
    fails(run("toy", "-c", "64", "-p", "dog " * 200), "tokens, the context holds 64", "--ctx-size")


def test_a_context_for_nothing_is_wrong_usage(run: Run) -> None:
    fails(run("toy", "-c", "1", "-p", "hi"), "holds no conversation", "--ctx-size", code=2)


def test_a_context_beyond_training_warns_and_runs(run: Run, tmp_path: Path) -> None:
    model = gguf_models.write_random_llama(tmp_path / "short.gguf", n_ctx=128)
    done = run(str(model), "-c", "256", "-n", "3", "-p", "hi")
    assert done.code == 0
    assert done.err.startswith("warning: ")
    assert "256" in done.err
    assert "128" in done.err


def test_too_little_memory_for_the_cache(run: Run) -> None:
    fails(run("toy", "-c", "2000000000", "-p", "hi"), "memory", "--ctx-size")


def test_too_little_address_space(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("localspec.machine.address_space_left", lambda _threads=0: 1_000_000)
    with pytest.raises(OutOfMemory, match="may take 1"):
        load_session(LoadRequest(pair="toy"), progress=lambda _step, _share: None, cancel=Cancel())


@pytest.mark.slow
def test_weights_that_do_not_fit_are_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("localspec.machine.available", lambda: PROGRAM + 11_000_000)
    loaded = load_session(
        LoadRequest(pair="toy", ctx_size=32), progress=lambda _step, _share: None, cancel=Cancel()
    )
    assert "read from disk again and again" in " ".join(loaded.notices)
    loaded.close()


@pytest.mark.parametrize("prompt", ["", "  \n"])
def test_an_empty_prompt(run: Run, prompt: str) -> None:
    fails(run("toy", "-p", prompt), "empty", "-p TEXT")


def test_wrong_usage_exits_with_2(run: Run) -> None:
    for arguments in (
        ["--gamma", "x"],
        ["--nonsense"],
        ["a", "b", "c"],
        ["-p"],
        ["toy", "a", "-p", "b"],
    ):
        assert run(*arguments).code == 2
    assert run("toy", "-p", "hi", "--temp", "-1").code == 2


def test_a_draft_with_more_tokens_than_the_target(run: Run, tmp_path: Path) -> None:
    longer = gguf_models.write_longer_vocabulary(tmp_path / "longer.gguf")
    arguments = ("-p", STORY, "-n", "20", "--temp", "1", "--gamma", "3", "--json")
    done = run("toy", "--draft", str(longer), *arguments)
    assert done.document["drafted_tokens"] > 0


def test_a_model_without_a_template_warns_and_answers(run: Run, tmp_path: Path) -> None:
    model = gguf_models.write_other_vocabulary(tmp_path / "plain.gguf", template=False)
    done = run(str(model), "-p", "hi", "-n", "5")
    assert done.code == 0
    assert "no chat template" in done.err


# Streams and signals, in separate processes.


@pytest.mark.slow
def test_standard_input_is_the_prompt_without_p_and_with_a_dash() -> None:
    for arguments in ([], ["-"], ["-p", "-"]):
        how = (*arguments, "-n", "4", "--temp", "0", "--json")
        running = process("toy", *how, stdin=subprocess.PIPE)
        document = finished(running, f"{STORY}\n".encode()).document
        assert document["text"].startswith("Once")


@pytest.mark.slow  # it is waited for
@pytest.mark.skipif(os.name == "nt", reason="pipes cannot be looked at there")
def test_what_is_piped_in_late_stands_below_the_prompt() -> None:
    short = ("-n", "1", "--temp", "0", "--json")
    whole = finished(process("toy", "-p", "Once upon\n\na time there was a dog.", *short)).document
    running = process("toy", "-p", "Once upon", *short, stdin=subprocess.PIPE)
    time.sleep(6)
    late = finished(running, b"a time there was a dog.\n")
    assert late.document["prompt_tokens"] == whole["prompt_tokens"]
    assert late.err.count("waiting for standard input") == 1
    assert "< /dev/null" in late.err


@pytest.mark.slow  # it is waited for
@pytest.mark.skipif(os.name == "nt", reason="pipes cannot be looked at there")
def test_ctrl_c_while_it_waits_for_a_silent_pipe_exits_130() -> None:
    reader, writer = os.pipe()  # never closed before the end, as by a program that is its parent
    try:
        running = process("toy", "-p", STORY, "-n", "4", stdin=reader)
        assert running.stderr is not None
        assert b"waiting for standard input" in running.stderr.readline()
        running.send_signal(signal.SIGINT)
        done = finished(running)
    finally:
        os.close(reader)
        os.close(writer)
    assert (done.code, done.out, done.err) == (130, "", "")


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["toy", "-p", "Once upon"], ["toy", "Once upon"]])
def test_what_is_piped_in_stands_below_the_prompt(arguments: list[str]) -> None:
    short = ("-n", "1", "--temp", "0", "--json")
    alone = finished(process(*arguments, *short)).document
    running = process(*arguments, *short, stdin=subprocess.PIPE)
    both = finished(running, b"a time there was a dog.\n").document
    whole = finished(process("toy", "-p", "Once upon\n\na time there was a dog.", *short)).document
    assert both["prompt_tokens"] == whole["prompt_tokens"] > alone["prompt_tokens"]
    assert both["text"] == whole["text"]


def test_standard_input_that_is_not_utf8() -> None:
    running = process("toy", "-n", "4", stdin=subprocess.PIPE)
    fails(finished(running, b"caf\xe9 au lait"), "not UTF-8", "0xe9", "Save it as UTF-8")


@pytest.mark.skipif(os.name == "nt" or shutil.which("iconv") is None, reason="needs iconv")
def test_the_command_that_converts_converts() -> None:
    command = shlex.split(save_as_utf8().partition(": ")[2])
    done = subprocess.run(command, input=b"caf\xe9", capture_output=True, check=True)
    assert done.stdout.decode() == "café"


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="a stream is either to be read or written")
def test_standard_input_that_cannot_be_read(tmp_path: Path) -> None:
    with (tmp_path / "x").open("wb") as stdin:
        fails(
            finished(process("toy", "-n", "4", stdin=stdin)),
            "standard input cannot be read",
            "-p TEXT",
        )


@pytest.mark.slow
def test_empty_standard_input() -> None:
    fails(finished(process("toy", "-n", "4")), "empty")


def test_ctrl_c_while_it_writes_keeps_the_text_and_exits_130() -> None:
    sampled = ("--temp", "1.5", "--stop", "\x01", "--min-p", "0")
    running = process("toy", "-p", STORY, *sampled, *GOES_ON, pipesize=4096)
    assert running.stdout is not None
    first = running.stdout.read(1)
    running.send_signal(signal.SIGINT)
    done = finished(running)
    assert done.code == 130
    assert first
    assert done.out.endswith("\n")
    assert all(line.startswith("warning: the context of 8,192") for line in done.err.splitlines())


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs /proc")
def test_ctrl_c_while_it_loads_exits_130_in_silence() -> None:
    running = process("toy", "-p", STORY, "--json")
    children = Path(f"/proc/{running.pid}/task/{running.pid}/children")
    while not any(
        "libllama" in Path(f"/proc/{child}/maps").read_text()
        for child in children.read_text().split()
    ):
        assert running.poll() is None
        time.sleep(0.005)
    running.send_signal(signal.SIGINT)
    done = finished(running)
    assert done.code == 130
    assert done.err.strip() == ""
    # It may have got as far as an answer of no words.
    assert done.out == "" or json.loads(done.out)["finish_reason"] == "cancelled"


def test_ctrl_c_while_it_waits_for_the_prompt_exits_130() -> None:
    controller, terminal = os.openpty()
    running = process(stdin=terminal)
    assert running.stderr is not None
    assert running.stderr.read(4) == b"Type"
    running.send_signal(signal.SIGINT)
    done = finished(running)
    os.close(controller)
    os.close(terminal)
    assert done.code == 130
    assert "Traceback" not in done.err


@pytest.mark.slow
def test_a_reader_that_leaves_early_is_no_error() -> None:
    # While other tests run, the toy's draft may be measured as too slow, and `run` says so.
    with process("toy", "-p", STORY, "-n", "200", "--draft-anyway") as running:
        assert running.stdout is not None
        running.stdout.read(4)
        running.stdout.close()
        assert running.stderr is not None
        assert running.stderr.read() == b""
    assert running.returncode == 0


class CancelledWorker:
    """An engine's worker whose answer ends after one word."""

    def __init__(self, done: list[object], *, stopped: bool) -> None:
        self.stopped, self._done = stopped, done
        self.found: Any = SimpleNamespace(
            end=SimpleNamespace(reason=FinishReason.CANCELLED), peak_memory_bytes=1
        )

    def result(self, _kind: object, hear: Callable[[Any], None]) -> object:
        hear(TurnReported(RoundText((Span("Hi.", Origin.TARGET),), round_of(0, 0))))
        return self.found

    def peak_memory_bytes(self, engines: int) -> int:
        return engines

    def stop(self) -> None:
        self._done.append("stopped")


@pytest.mark.parametrize("stopped", [True, False])
def test_an_answer_whose_stop_ended_the_reader_too_is_kept(
    monkeypatch: pytest.MonkeyPatch, *, stopped: bool
) -> None:
    """Ctrl+C reaches `| tee` as well; without it, the reader has seen enough."""
    kept: list[object] = []

    def gone(_: str) -> None:
        raise BrokenPipeError

    monkeypatch.setattr("localspec.cli.standard_streams.write", gone)
    monkeypatch.setattr("localspec.cli.answers.answer_output.write", gone, raising=False)
    worker: Any = CancelledWorker([], stopped=stopped)
    assert print_answer(worker, stats=False, as_json=False, keep=kept.append) is stopped
    assert kept == [worker.found] * stopped


@pytest.mark.parametrize("as_json", [True, False])
def test_an_answer_that_cannot_be_printed_is_stopped_and_kept(
    monkeypatch: pytest.MonkeyPatch, *, as_json: bool
) -> None:
    """A disk that is full, a terminal that is gone."""
    done: list[object] = []

    def full(_: str) -> None:
        if "stopped" not in done:  # afterwards it goes nowhere
            raise LocalspecError("the disk is full")

    monkeypatch.setattr("localspec.cli.standard_streams.write", full)
    monkeypatch.setattr("localspec.cli.answers.answer_output._document", lambda *_: {})
    worker: Any = CancelledWorker(done, stopped=False)
    with pytest.raises(LocalspecError, match="the disk is full"):
        print_answer(worker, stats=False, as_json=as_json, keep=done.append)
    assert done == ["stopped", worker.found]


@pytest.mark.parametrize("error", [EngineDied("it was killed"), Cancelled()])
@pytest.mark.parametrize("as_json", [True, False])
def test_what_was_heard_of_an_answer_that_broke_off_is_kept(
    error: Exception, *, as_json: bool
) -> None:
    session: Any = SimpleNamespace(
        pair_name="toy", pair_reference=("toy", None), settings=ChatSettings()
    )
    kept: list[object] = []

    class Worker:
        stopped = False

        def result(self, _kind: object, hear: Callable[[Any], None]) -> object:
            hear(Loaded(session))
            for text in ("Hi", ".", "", "Rain."):
                if text == "Rain.":
                    hear(ToolsCalled((("weather", "{}"),)))
                hear(TurnReported(RoundText((Span(text, Origin.TARGET),), round_of(0, 0))))
            raise error

    worker: Any = Worker()
    with pytest.raises(type(error)):
        print_answer(worker, stats=False, as_json=as_json, keep=kept.append)
    spans = (Span("Hi.\n\nRain.", Origin.TARGET),)
    assert kept == [BrokenAnswer("toy", ("toy", None), session.settings, spans)]


@pytest.mark.slow
def test_a_full_disk_is_a_message() -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "localspec", "run", "toy", "-p", STORY, "-n", "4"],
            stdout=full,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
            check=False,
        )
    assert done.returncode == 1
    assert "cannot write to standard output" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_a_narrow_encoding_gets_replacements() -> None:
    running = process(
        "toy", "-p", STORY, "-n", "4", env={**os.environ, "PYTHONIOENCODING": "ascii"}
    )
    assert finished(running).code == 0


# ---------------------------------------------------------------- who drafts


REPEATED = "one two three four five six seven eight nine ten " * 3


def test_every_round_says_who_drafted(run: Run) -> None:
    documents = {
        draft: run("toy", "-p", REPEATED, "--json", "--temp", "0", "-n", "40", *options).document
        for draft, *options in (
            ("lookup", "--draft", "lookup", "--gamma", "6"),
            ("auto",),
            ("none", "--draft", "none"),
        )
    }
    assert len({document["text"] for document in documents.values()}) == 1
    assert documents["none"]["drafters"] == {}
    assert "none was wanted" in documents["none"]["settings"]["draft_note"]
    assert set(documents["lookup"]["drafters"]) == {"lookup"}
    assert documents["lookup"]["settings"]["draft_note"] == ""
    for document in documents.values():
        for field in ("drafted", "accepted"):
            by_drafter = sum(its[field] for its in document["drafters"].values())
            assert by_drafter == document[f"{field}_tokens"]
        for done in document["rounds"]:
            assert done["drafter"] in ("", "draft", "lookup", "draft+lookup")
            assert bool(done["drafted"]) <= bool(done["drafter"])


def test_a_wrong_list_of_drafters_is_refused(run: Run) -> None:
    fails(run("toy", "-p", "hi", "--draft", "none,lookup"), "--draft", "none", code=2)
    fails(run("toy", "-p", "hi", "--draft", "toy,toy"), "twice", code=2)


@pytest.mark.parametrize("terminal", [True, False])
def test_only_a_terminal_shows_how_far_a_long_prompt_is_read(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *, terminal: bool
) -> None:
    class Worker:
        def result(self, _kind: object, hear: Callable[[Any], None]) -> str:
            text = RoundText((Span("Hi.", Origin.TARGET),), round_of(0, 0))
            for event in (PromptProgress(16, 400, 18.4), PromptProgress(390, 400, 0.4), text):
                hear(TurnReported(event))
            return "the result"

    monkeypatch.setattr(ProgressLine, "is_terminal", property(lambda _: terminal))
    worker: Any = Worker()
    assert _stream(_SaidText(worker), None, show=True) == "the result"
    out, err = capsys.readouterr()
    assert out == "Hi.\n"
    assert ("reading 400 tokens: 4 %, about 18 s left" in err) is terminal
    assert err.count("left") == terminal
