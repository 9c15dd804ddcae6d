"""What a bench shares with others, and the files that are refused."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result

from benchmarks import hardware
from localspec.bench import benchmark
from localspec.bench.result import ArmReport, BenchReport, MeanInterval
from localspec.bench.sharing import shared_report
from localspec.bench.sharing.shared_file import read_shared, require_shareable
from localspec.bench.sharing.shared_report import SharedReport, shared, to_json
from localspec.cli.subcommands import cli
from localspec.engine.cancel import Cancel
from localspec.errors import LocalspecError, UsageError
from tests.support.bench_reports import ENVIRONMENT, arm, report, request

KINDS = {
    "edit": MeanInterval(1.6, 1.5, 1.7),
    "chat": MeanInterval(0.98, 0.95, 1.01),
    "conversion": MeanInterval(1.4),
}
LOADED = {
    "ctx_size": 4096,
    "threads": 8,
    "n_gpu_layers": -1,
    "flash_attn": "on",
    "cache_type_k": "f16",
    "cache_type_v": "q8_0",
    "exact": None,
    "rpc": ["secret.example:50052"],
    "device": ["CUDA0"],
}
MODEL = {
    "name": "Acme-merger-notes",
    "own_name": "Big 8B",
    "type": "llama 8B Q8_0",
    "file_bytes": 5_000_000_000,
}
ASKED = {"prompts": "quick", "temp": 0.0, "n_predict": 128, "ignore_eos": False, "quick": True}


def on(name: str = "on", *, drafters: Any = (("draft", "Small 1B"),), **changes: Any) -> ArmReport:
    """A setting that drafts."""
    return replace(arm(name, KINDS["edit"], KINDS), drafters=drafters, **changes)


def measured(*arms: ArmReport, **environment: Any) -> BenchReport:
    """A report with all that is shared."""
    where = ENVIRONMENT | {
        "target": MODEL | {"sha256_of_first_mebibyte": "ab" * 32},
        "drafts": [MODEL | {"own_name": "Small 1B", "sha256": "cd" * 32}],
        "loaded_with": LOADED,
    }
    return report(*(arms or (on(),)), environment=where | environment, settings=ASKED)


def document() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(to_json(shared(measured())))
    return found


def test_what_was_measured_is_read_back() -> None:
    made = shared(measured())
    assert read_shared(to_json(made).encode()) == made
    assert made.curve[0] == (1, 0.01)
    assert (made.target.name, made.target.hashed) == ("Big 8B", "first mebibyte")
    assert made.arms[0].drafters == "Small 1B"
    how = made.settings
    assert (how.temp, how.n_predict, how.ignore_eos, how.quick) == (0.0, 128, False, True)
    assert [gain.kind for gain in made.arms[0].gains] == list(KINDS)
    assert made.arms[0].gains[2].low is None
    assert len(to_json(made)) < 4000


def test_an_interval_that_tells_nothing_ends_at_what_can_be_true() -> None:
    wide = arm("on", KINDS["edit"], {"edit": MeanInterval(1.4, 1e-3, 2e3)})
    made = shared(measured(replace(wide, drafters=(("lookup", "lookup"),))))
    gain = made.arms[0].gains[0]
    assert (gain.low, gain.high) == (0.02, 50.0)
    assert read_shared(to_json(made).encode()) == made


def test_nothing_in_it_names_anybody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("getpass.getuser", lambda: "Theodora")
    monkeypatch.setattr("platform.node", lambda: "attic-7.example")
    for name in (
        "",
        "Größe 7",
        "home/bob/models/x",
        "theodoras finetune",
        "made on ATTIC-7",
        "/srv/models/big",
        "~/m/x",
        "C:\\m\\x",
    ):
        target = MODEL | {"own_name": name, "sha256": "ab" * 32}
        drafting = on(drafters=(("mtp", name), ("lookup", "lookup")))
        said = to_json(shared(measured(drafting, pair="my secret pair", target=target)))
        assert json.loads(said)["target"]["name"] == ""
        assert json.loads(said)["arms"][0]["drafters"] == "mtp+lookup"
        for secret in ("heodora", "attic", "ATTIC", "secret", "srv", "my ", "bob", "Acme"):
            assert secret not in said


def test_a_name_of_two_letters_is_looked_for_as_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("getpass.getuser", lambda: "Jo")
    for name, told in (("Jo's notes", ""), ("made-by-JO", ""), ("Dojo 7B", "Dojo 7B")):
        target = MODEL | {"own_name": name, "sha256": "ab" * 32}
        assert shared(measured(target=target)).target.name == told


def test_the_publisher_before_a_models_name_is_left_out() -> None:
    target = MODEL | {"own_name": "Meta/Llama 3.2 1B", "sha256": "ab" * 32}
    made = shared(measured(target=target))
    assert made.target.name == "Llama 3.2 1B"
    assert read_shared(to_json(made).encode()) == made


@pytest.mark.parametrize("name", ["Llama 3.2 w/ tools", "Qwen3 30B A3B (1/2)"])
def test_a_slash_within_a_name_leaves_none(name: str) -> None:
    target = MODEL | {"own_name": name, "sha256": "ab" * 32}
    assert shared(measured(target=target)).target.name == ""


def test_a_machine_with_several_cards_has_a_name_that_fits() -> None:
    cpu = "AMD Ryzen Threadripper PRO 7995WX 96-Cores™, 192 threads, 540 GB"
    cards = ", ".join(4 * ["NVIDIA GeForce RTX 4090"])
    made = shared(measured(machine=f"{cpu}, {cards}, Radeon® 780M"))
    assert made.machine == f"{cpu.replace('™', '')}, 4 x NVIDIA GeForce RTX 4090, Radeon 780M"
    assert read_shared(to_json(made).encode()) == made
    different = ", ".join(f"NVIDIA H100 80GB HBM{n}" for n in range(12))
    made = shared(measured(machine=f"{cpu}, {different}"))
    assert len(made.machine) == 160
    assert read_shared(to_json(made).encode()) == made


def test_drafters_of_the_same_name_are_numbered() -> None:
    made = shared(measured(on("a"), on("b"), on("c", drafters=(("lookup", "lookup"),))))
    assert [arm.drafters for arm in made.arms] == ["Small 1B", "Small 1B #2", "lookup"]
    assert read_shared(to_json(made).encode()) == made


def test_the_page_makes_a_row_of_a_file_and_names_those_that_it_refuses(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "good.json").write_text(to_json(shared(measured())))
    (tmp_path / "wrong.json").write_text('{"format": 1}')
    rows = hardware.shared(tmp_path).splitlines()
    assert rows[-1].startswith(f"| {ENVIRONMENT['machine']} | llama 8B Q8_0 | 1.10 | Small 1B |")
    assert "edit 1.60 (1.50–1.70), chat 0.98 (0.95–1.01), conversion 1.40" in rows[-1]
    assert "wrong.json: this is not what" in capsys.readouterr().out
    assert hardware.shared(tmp_path / "none") == ""


@pytest.mark.parametrize(
    "text",
    [
        "11th Gen Intel(R) Core(TM) i7-1165G7 @ 2.80GHz, 8 threads, 16 GB, no accelerator",
        "0.3.36 CPU : SSE3 = 1 | AVX2 = 1 | LLAMAFILE = 1 | OPENMP = 1 | REPACK = 1 |",
        "Apple M2 Ultra, 24 threads, 192 GB, Apple M2 Ultra",
        "Qwen2.5-Coder-1.5B-Instruct.Q4_K_M",
        "Driver 32.0.15.6094",
        "AMD Ryzen 9 7940HS w/ Radeon 780M Graphics, 16 threads, AMD Radeon 780M (RADV PHOENIX)",
    ],
)
def test_what_machines_builds_and_models_are_called_is_no_address(text: str) -> None:
    assert not shared_report.PRIVATE.search(text)


GOOD = {1: 0.01, 2: 0.011}
NOISY = {1: 0.01, 2: 0.01, 4: 0.004}


@pytest.mark.parametrize(("then", "refused"), [(NOISY, True), (GOOD, False)])
def test_costs_that_cannot_be_true_are_measured_again_before_a_question_is_asked(
    then: dict[int, float], *, refused: bool
) -> None:
    again: list[int] = []

    def measure() -> tuple[dict[int, float], dict[int, float]]:
        again.append(1)
        return then, {}

    where = measured().environment
    good = GOOD, {1: 0.001}
    assert benchmark._shareable(good, measure, where, ASKED) == good
    assert not again
    if refused:
        with pytest.raises(LocalspecError, match=r"be shared: T\(4\) is below half") as caught:
            benchmark._shareable((NOISY, {}), measure, where, ASKED)
        assert "calm moment" in caught.value.remedy
    else:
        assert benchmark._shareable((NOISY, {}), measure, where, ASKED) == (then, {})
    assert again == [1]


def test_a_calm_moment_is_asked_for_where_it_helps() -> None:
    report = measured(system="kept in /srv/models/big")
    found = shared_report.without_arms(report.environment, ASKED, report.curve, None)
    with pytest.raises(LocalspecError, match="a path, an address or markup") as caught:
        require_shareable(found)
    assert caught.value.remedy == "Leave --share out."


def test_there_must_be_something_to_share() -> None:
    bare = tuple(replace(row, acceptance=None, drafting=0.0) for row in on().kinds)
    for arms in ((), (on(kinds=bare),)):
        with pytest.raises(LocalspecError, match="nothing to share: no drafting was timed"):
            shared(replace(measured(), arms=(measured().off, *arms)))
    assert len(shared(measured(on(), on("b", kinds=bare))).arms) == 2
    own = measured(arm("on", KINDS["edit"], {"my kind": KINDS["edit"]}))
    with pytest.raises(LocalspecError, match="a kind of text that localspec does not ask for"):
        read_shared(to_json(shared(own)).encode())


def test_a_target_that_nothing_drafts_for_has_nothing_to_share(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    off = SimpleNamespace(name="off", swept=False)
    monkeypatch.setattr(benchmark, "arms_of", lambda *_: [off])
    wanted = request(shared=True)
    with pytest.raises(LocalspecError, match="nothing drafts for this target"):
        benchmark.bench([], wanted, Cancel(), progress=lambda *_: None, asking=lambda *_: None)


def put(value: Any, *place: str | int) -> Callable[[dict[str, Any]], bytes]:
    """The document with `value` at a place."""

    def damaged(found: dict[str, Any]) -> bytes:
        within: Any = found
        for key in place[:-1]:
            within = within[key]
        within[place[-1]] = value
        return json.dumps(found).encode()

    return damaged


def without(*place: str | int) -> Callable[[dict[str, Any]], bytes]:
    """The document with something left out."""

    def damaged(found: dict[str, Any]) -> bytes:
        within: Any = found
        for key in place[:-1]:
            within = within[key]
        del within[place[-1]]
        return json.dumps(found).encode()

    return damaged


def raw(content: bytes) -> Callable[[dict[str, Any]], bytes]:
    return lambda _: content


def swapped(old: str, new: str) -> Callable[[dict[str, Any]], bytes]:
    """The document's text with one part of it replaced."""

    def damaged(found: dict[str, Any]) -> bytes:
        text = json.dumps(found)
        assert old in text
        return text.replace(old, new, 1).encode()

    return damaged


def undrafted(found: dict[str, Any]) -> bytes:
    """The document with nothing drafted."""
    for gain in found["arms"][0]["gains"]:
        gain["acceptance"] = None
    return json.dumps(found).encode()


GAIN = ("arms", 0, "gains", 0)
ESCAPE, OVERRIDE = "\x1b[2Jgone", "abc\u202ecba"
DAMAGED: list[tuple[Callable[[dict[str, Any]], bytes], str]] = [
    (raw(b""), "not JSON"),
    (raw(b"\xff\xfe\x00"), "not UTF-8"),
    (raw(b"hello"), "not JSON"),
    (raw(b"[]"), "Expected `object`"),
    (raw(b"null"), "Expected `object`"),
    (raw(b'{"format": "localspec-share-1"}'), "missing required field"),
    (raw(b"[" * 60_000), "nested too deeply"),
    (raw(b" " * 1_000_000), "more than 65,536 bytes"),
    (put("x" * 1_000_000, "target", "name"), "more than 65,536 bytes"),
    (lambda found: json.dumps(found).encode()[:-40], "not JSON"),
    (lambda found: json.dumps(found).encode() * 2, "not JSON"),
    (swapped('"threads": 8', '"threads": 8, "threads": 9'), "'threads' is given twice"),
    (put("localspec-share-2", "format"), "Invalid enum value"),
    (without("format"), "missing required field `format`"),
    (without("target", "hash"), "missing required field `hash`"),
    (without("curve"), "missing required field `curve`"),
    (put(1, "evil"), "unknown field `evil`"),
    (put(1, ESCAPE), "unknown field"),
    (put("bob", "target", "user"), "unknown field `user`"),
    (put(7, "machine"), "Expected `str`, got `int`"),
    (put(["x"], "target", "name"), "Expected `str`, got `array`"),
    (put(ESCAPE, "machine"), "cannot be shown"),
    (put(ESCAPE, "target", "name"), "cannot be shown"),
    (put(OVERRIDE, "arms", 0, "drafters"), "cannot be shown"),
    (put("two\nlines", "system"), "cannot be shown"),
    (put("", "machine"), "a text is empty"),
    (put("x" * 161, "target", "type"), "more than 160 characters"),
    (put("x" * 1001, "build"), "the build has more than 1000 characters"),
    (put("/home/bob/big", "target", "name"), "a path, an address or markup"),
    (put("home/bob/models/x", "target", "name"), "a path, an address or markup"),
    (put("home/bob/models/x", "system"), "a path, an address or markup"),
    (put("bob/x", "arms", 0, "drafters"), "a path, an address or markup"),
    (put("C:\\Users\\bob", "target", "name"), "a path, an address or markup"),
    (put("bob@attic", "machine"), "a path, an address or markup"),
    (put("https://evil.example", "system"), "a path, an address or markup"),
    (put("<script>alert(1)</script>", "target", "name"), "a path, an address or markup"),
    (put("example.com/path", "target", "name"), "a path, an address or markup"),
    (put("see evil.example/x", "system"), "a path, an address or markup"),
    (put("www.evil.example", "target", "type"), "a path, an address or markup"),
    (put("attic.example:50052", "machine"), "a path, an address or markup"),
    (put("cores of 10.0.0.7", "machine"), "a path, an address or markup"),
    (put("../../etc/passwd".replace("..", "~", 1), "system"), "a path, an address or markup"),
    (put("../../etc/passwd", "system"), "a path, an address or markup"),
    (put("./bob/big.gguf", "target", "name"), "a path, an address or markup"),
    (put("fe80::1ff:fe23:4567:890a", "machine"), "a path, an address or markup"),
    (put("aa:bb:cc:dd:ee:ff", "machine"), "a path, an address or markup"),
    (put("[win](javascript:alert(1))", "machine"), "a path, an address or markup"),
    (put("![x](data:image/png;base64,AA)", "target", "type"), "a path, an address or markup"),
    (put("`rm -rf`", "arms", 0, "drafters"), "a path, an address or markup"),
    (put("\u3164", "machine"), "cannot be shown"),
    (put("a" + 150 * "\u0301", "machine"), "cannot be shown"),
    (swapped('"threads": 8', f'"threads": {"9" * 5000}'), "a number has too many digits"),
    (swapped('"format"', r'"\ud800": 1, "format"'), "not UTF-8"),
    (put("ab" * 31, "target", "hash"), "64 digits"),
    (put("AB" * 32, "target", "hash"), "64 digits"),
    (put(0, "target", "file_bytes"), "a file's size"),
    (put(10**30, "target", "file_bytes"), "cannot be true|out of range"),
    (put(True, "settings", "threads"), "Expected `int`, got `bool`"),
    (put(0, "settings", "threads"), "the number of threads"),
    (put(-2, "settings", "n_gpu_layers"), "the number of layers"),
    (put("rm -rf", "settings", "cache_type_k"), "no such cache type"),
    (put("maybe", "settings", "flash_attn"), "Invalid enum value"),
    (put(-0.1, "settings", "temp"), "the temperature"),
    (without("settings", "temp"), "missing required field `temp`"),
    (put(0, "settings", "n_predict"), "the number of tokens of an answer"),
    (put(10**6, "settings", "n_predict"), "the number of tokens of an answer"),
    (put("no", "settings", "ignore_eos"), "Expected `bool`"),
    (without("settings", "quick"), "missing required field `quick`"),
    (put(0.0, "busy_cores"), "unknown field `busy_cores`"),
    (put([], "curve"), r"T\(1\) or T\(2\) is missing"),
    (put([[1, 0.01]], "curve"), r"T\(1\) or T\(2\) is missing"),
    (put([[1, 0.01], [4, 0.02]], "curve"), r"T\(1\) or T\(2\) is missing"),
    (put([[1, 0.01], [2, 0.02], [1, 0.01]], "curve"), "do not rise to 64"),
    (put([[1, 0.01], [2, 0.02], [2, 0.02]], "curve"), "do not rise to 64"),
    (put([[1, 0.01], [2, 0.02], [65, 0.3]], "curve"), "do not rise to 64"),
    (put(-0.01, "curve", 0, 1), r"T\(1\) is not between"),
    (put(0.0, "curve", 0, 1), r"T\(1\) is not between"),
    (put(0.0049, "curve", 2, 1), r"T\(4\) is below half of T\(1\)"),
    (put(0.17, "curve", 2, 1), r"T\(4\) is more than 16 times T\(1\)"),
    (put([[1, 0.01, 2]], "curve"), "Expected `array` of length 2"),
    (swapped("0.014", "NaN"), "NaN is not a number"),
    (swapped("0.014", "1e999"), r"T\(13\) is not between"),
    (swapped("0.014", "-Infinity"), "-Infinity is not a number"),
    (put(1e9, "draft_step_s"), "the draft's step"),
    (put([], "arms"), "too many parts, or none"),
    (lambda found: put(2 * found["arms"], "arms")(found), "the same drafters are given twice"),
    (undrafted, "nothing was drafted"),
    (put([], "arms", 0, "gains"), "given twice, or none is"),
    (put("for ever", "arms", 0, "gamma"), "no such gamma"),
    (put("chat", *GAIN, "kind"), "given twice"),
    (put("my diary", *GAIN, "kind"), "does not ask for"),
    (put(0, *GAIN, "prompts"), "the number of prompts"),
    (put(-1.6, *GAIN, "speedup"), "speed-up for edit"),
    (put(900.0, *GAIN, "high"), "speed-up for edit"),
    (put(1.65, *GAIN, "low"), "speed-up for edit"),
    (put(None, *GAIN, "low"), "an interval has one end"),
    (put(1.2, *GAIN, "acceptance"), "the acceptance for edit"),
]


@pytest.mark.parametrize("case", range(len(DAMAGED)))
def test_damaged_absurd_and_hostile_files_are_refused_in_a_sentence(case: int) -> None:
    damage, said = DAMAGED[case]
    with pytest.raises(LocalspecError, match=said) as caught:
        read_shared(damage(copy.deepcopy(document())))
    words = f"{caught.value.message} {caught.value.remedy}"
    assert caught.value.message.startswith("this is not what `bench --share` writes: ")
    assert words.isprintable()
    assert len(words) < 300


def test_enough_of_them_are_tried() -> None:
    assert len(DAMAGED) >= 50


def invoked(path: Path, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> Result:
    monkeypatch.setenv("LOCALSPEC_ENGINE", "inline")
    monkeypatch.setattr("localspec.bench.benchmark.bench_pair", lambda *_, **__: measured())
    return CliRunner().invoke(cli, ["bench", "toy", "--share", str(path), *arguments])


def test_it_is_shown_before_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    path = tmp_path / "mine.json"
    put_down = shared_report.to_json

    def seen(found: SharedReport) -> str:
        assert not path.exists()
        shown.append(put_down(found))
        return shown[0]

    monkeypatch.setattr("localspec.cli.machine.bench_output.to_json", seen)
    done = invoked(path, monkeypatch)
    assert done.exit_code == 0
    assert shown[0] in done.stderr
    assert "mine.json" in done.stderr
    assert str(tmp_path) not in done.stderr
    assert path.read_text("utf-8") == shown[0]
    assert shown[0] not in done.stdout
    assert read_shared(path.read_bytes()) == shared(measured())


def test_only_a_measurement_with_known_prompts_and_weights_is_shared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own").write_text("")
    own = str(tmp_path / "own")
    for option, value in {"prompts": own, "lora": own, "lora-scaled": f"{own}:0.5"}.items():
        done = invoked(tmp_path / "mine.json", monkeypatch, f"--{option}", value)
        assert isinstance(done.exception, UsageError)
        assert f"--share does not go with --{option}" == done.exception.message
        assert not (tmp_path / "mine.json").exists()
    done = invoked(tmp_path / "nowhere" / "mine.json", monkeypatch)
    assert isinstance(done.exception, LocalspecError)
    assert "cannot write" in done.exception.message


@pytest.mark.parametrize("option", ["--gamma 0", "--draft none", "--drafts none"])
def test_nothing_is_measured_to_be_shared_where_nothing_drafts(
    option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = invoked(tmp_path / "mine.json", monkeypatch, *option.split())
    assert isinstance(done.exception, UsageError)
    assert f"with {option} nothing does" in done.exception.message


def test_it_is_written_though_all_else_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(_: str) -> None:
        raise BrokenPipeError

    def full(*_: object) -> None:
        raise LocalspecError("cannot write report.md")

    path = tmp_path / "mine.json"
    monkeypatch.setattr("localspec.cli.machine.bench_output.write", gone)
    assert invoked(path, monkeypatch).exit_code == 0  # the reader had enough
    assert read_shared(path.read_bytes()) == shared(measured())
    path.unlink()
    monkeypatch.setattr("localspec.bench.report_files.write", full)
    done = invoked(path, monkeypatch, "-o", str(tmp_path / "report.md"))
    assert isinstance(done.exception, LocalspecError)
    assert "cannot write report.md" in done.exception.message
    assert read_shared(path.read_bytes()) == shared(measured())
