"""Names, references, quants, the curated list, installed pairs, and what rm and list do."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from pathlib import Path

import pytest
from huggingface_hub import constants
from hypothesis import given
from hypothesis import strategies as st

from localspec.engine.llama import Model
from localspec.errors import (
    BadReference,
    LocalspecError,
    ModelFileError,
    ModelLoadError,
    NotOnHub,
    UsageError,
    install_again,
)
from localspec.pairs.disk import folders, installed, starter, unfinished_pulls
from localspec.pairs.disk.installed import InstalledModel, InstalledPair
from localspec.pairs.gguf import head_checks
from localspec.pairs.gguf.header import read_header
from localspec.pairs.hub import cache as hub_cache
from localspec.pairs.hub import download, pair_pull
from localspec.pairs.hub.cache import RemoteFile
from localspec.pairs.hub.pair_pull import PullRequest
from localspec.pairs.hub.retries import RetryPolicy
from localspec.pairs.names import catalogue, references, repository_files, resolver
from localspec.pairs.names.references import Reference
from localspec.pairs.names.reserved_names import STARTER
from tests.support import gguf_models, ggufs, hub_layouts, toy
from tests.support.heads import write_dflash
from tests.support.hub_server import Repo
from tests.support.hub_world import World


@pytest.fixture
def pair(hub_world: World) -> tuple[Repo, Repo]:
    target = hub_world.server.add("ann/Big-GGUF", {"big-Q4_K_M.gguf": ggufs.model(n_bytes=64_000)})
    draft = hub_world.server.add("ann/Small-GGUF", {"small-Q8_0.gguf": ggufs.model(seed=1)})
    return target, draft


# --- references -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("u/r", Reference("u/r")),
        ("u/r:Q4_K_M", Reference("u/r", quant="Q4_K_M")),
        ("u/r:q8_0@v1", Reference("u/r", quant="q8_0", revision="v1")),
        ("u/r@v1:q8_0", Reference("u/r", quant="q8_0", revision="v1")),
        ("u/r:m.gguf", Reference("u/r", file="m.gguf")),
        ("u/r:sub/m.GGUF@refs/pr/3", Reference("u/r", file="sub/m.GGUF", revision="refs/pr/3")),
        ("u/r/sub/m.gguf", Reference("u/r", file="sub/m.gguf")),
        ("u/r:m@x.gguf", Reference("u/r", file="m@x.gguf")),
        ("u/r:m@x.gguf@v1", Reference("u/r", file="m@x.gguf", revision="v1")),
        ("u/r@0123abc", Reference("u/r", revision="0123abc")),
        ("hf.co/u/r", Reference("u/r")),
        ("hf.co/u/r:Q8_0", Reference("u/r", quant="Q8_0")),
        ("https://hf.co/u/r/", Reference("u/r")),
        ("huggingface.co/u/r/tree/main", Reference("u/r", revision="main")),
        (
            "https://huggingface.co/u/r/blob/main/a%20b/m.gguf?download=true",
            Reference("u/r", file="a b/m.gguf", revision="main"),
        ),
        (
            "https://huggingface.co/u/r/resolve/refs%2Fpr%2F3/m.gguf",
            Reference("u/r", file="m.gguf", revision="refs/pr/3"),
        ),
        (
            "https://huggingface.co/u/r/blob/feature%2Fx/m.gguf",
            Reference("u/r", file="m.gguf", revision="feature/x"),
        ),
        (
            "https://huggingface.co/u/r?show_file_info=Q8_0%2Fm-Q8_0.gguf",
            Reference("u/r", file="Q8_0/m-Q8_0.gguf"),
        ),
        (
            "https://huggingface.co/u/r/tree/main?show_file_info=m-Q8_0.gguf",
            Reference("u/r", file="m-Q8_0.gguf", revision="main"),
        ),
        ("https://hf.co/u/r/tree/main/Q8_0", Reference("u/r", quant="Q8_0", revision="main")),
        (
            f"https://hf.co/u/r/tree/main/{'x' * 40}-UD-Q4_K_XL",
            Reference("u/r", quant="UD-Q4_K_XL", revision="main"),
        ),
        ("u/r@refs/pr/3/m.gguf", Reference("u/r", file="m.gguf", revision="refs/pr/3")),
        ("https://hf.co/u/r/tree/refs/pr/3", Reference("u/r", revision="refs/pr/3")),
        ("https://hf.co/u/r/blob/main/README.md", Reference("u/r", revision="main")),
        ("hf://u/r@v1/m.gguf", Reference("u/r", file="m.gguf", revision="v1")),
        ("hf://u/r/m.gguf", Reference("u/r", file="m.gguf")),
        ("hf://models/u/r", Reference("u/r")),
        (" u/r ", Reference("u/r")),
    ],
)
def test_references_in_every_form(text: str, expected: Reference) -> None:
    assert references.parse(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        *("u", "u/", "/r", "u//r", "u/r/x", "u/r:", "u/r@", "u/r:a/b", "u/r:../m.gguf", "u/../r"),
        *("u/r:/m.gguf", "u/r@../x", "u/r@-x", "u--x/r", "-u/r", "ftp://hf.co/u/r", "u/r:Q 8"),
        *(
            "https://example.com/u/r",
            "https://hf.co/u",
            "https://hf.co/u/r?show_file_info=../m.gguf",
            "https://hf.co/u/r/tree/main/a b",
            "https://[hf.co/u/r",
            "hf://",
            "u/r:m\u2028.gguf",
            "u/r:a\\b.gguf",
        ),
    ],
)
def test_bad_references(text: str) -> None:
    with pytest.raises(BadReference) as caught:
        references.parse(text)
    assert "\n" not in caught.value.message
    assert caught.value.remedy


@given(st.text(max_size=40))
def test_any_text_is_a_reference_or_refused(text: str) -> None:
    try:
        found = references.parse(text)
    except BadReference:
        return
    assert references.parse(str(found)) == found
    assert not found.file or references.safe_file(found.file)


def test_an_endpoint_of_ones_own_is_a_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "https://hub.example.com")
    url = "https://hub.example.com/u/r/resolve/main/m.gguf"
    assert references.parse(url) == Reference("u/r", file="m.gguf", revision="main")


def test_a_repositorys_file_in_the_form_of_a_path(
    hub_world: World, pair: tuple[Repo, Repo], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = "ann/Big-GGUF/big-Q4_K_M.gguf"
    with pytest.raises(NotOnHub, match="is not on this disk"):
        resolver.resolve(text)
    assert hub_world.run("pull", text, "--draft", "none").code == 0
    assert hub_world.cache in resolver.resolve(text).target.parents
    (tmp_path / "ann" / "Big-GGUF").mkdir(parents=True)
    with pytest.raises(ModelFileError, match="does not exist"):  # a file of one's own is meant
        resolver.resolve(text)
    (tmp_path / text).write_bytes(ggufs.model())
    assert resolver.resolve(text).target == Path(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("u/r", PullRequest("u/r")),
        ("localspec pull u/r:Q8_0 --draft=u/d", PullRequest("u/r:Q8_0", "u/d")),
        ("--name n u/r --draft none", PullRequest("u/r", "none", "n")),
        ("'/a b/c.gguf' --draft C:\\d.gguf", PullRequest("/a b/c.gguf", "C:\\d.gguf")),
        ("u/r#x", PullRequest("u/r#x")),
    ],
)
def test_a_pull_is_read_from_one_line(text: str, expected: PullRequest) -> None:
    assert pair_pull.parse_request(text) == expected


@pytest.mark.parametrize(
    "text", ["", "pull x", "u/r --draft", "u/r 'x", "u/r -n x", "u/r --dry-run"]
)
def test_a_line_that_is_no_pull_is_refused(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        pair_pull.parse_request(text)
    assert "Write PAIR or user/repo" in caught.value.remedy


def test_paths_are_told_from_references() -> None:
    for text in (
        "/a/b",
        "./a",
        "../a/b",
        "~/m",
        "m.gguf",
        "dir/m.gguf",
        "C:\\m.gguf",
        "a/b/m.GGUF",
    ):
        assert references.looks_like_path(text), text
    for text in ("u/r", "u/r:m.gguf", "hf.co/u/r/m.gguf", "https://hf.co/u/r/m.gguf", "name"):
        assert not references.looks_like_path(text), text


def test_a_file_of_a_revision_is_meant_on_the_hub_unless_its_folder_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for text in ("u/r/m.gguf", "u/r@main/m.gguf"):
        assert not references.means_local(text)
        (tmp_path / text).parent.mkdir(parents=True)
        assert references.means_local(text)


@pytest.mark.parametrize("name", ["", "../m", "/m", "a/../m", "a//m", "./m", "a\\m", "c:m", "m\n"])
def test_unsafe_file_names(name: str) -> None:
    assert not references.safe_file(name)


# --- quants -----------------------------------------------------------------------------------

FILES = [
    "README.md",
    "model-BF16.gguf",
    "model-Q2_K.gguf",
    "model-Q4_K_M.gguf",
    "model-Q8_0.gguf",
    "model-UD-Q4_K_M.gguf",
    "model-IQ4_XS.gguf",
    "mmproj-model-F16.gguf",
    "model-imatrix.gguf",
    "mtp-model-Q4_K_M.gguf",
    "Q6_K/model-Q6_K-00001-of-00002.gguf",
    "Q6_K/model-Q6_K-00002-of-00002.gguf",
]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("u/r", "model-Q4_K_M.gguf"),
        ("u/r:q4_k_m", "model-Q4_K_M.gguf"),
        ("u/r:UD-Q4_K_M", "model-UD-Q4_K_M.gguf"),
        ("u/r:q8_0", "model-Q8_0.gguf"),
        ("u/r:bf16", "model-BF16.gguf"),
        ("u/r:IQ4_XS", "model-IQ4_XS.gguf"),
        ("u/r:MODEL-q2_k.gguf", "model-Q2_K.gguf"),
        ("u/r:mmproj-model-F16.gguf", "mmproj-model-F16.gguf"),
    ],
)
def test_quants_are_chosen_as_llama_cpp_does(text: str, expected: str) -> None:
    assert repository_files.choose(FILES, references.parse(text)) == [expected]


def test_of_files_with_one_name_the_exact_path_is_taken() -> None:
    files = ["A/m.gguf", "a/M.gguf", "a/m.gguf", "m.gguf"]
    for text in (*files, "A/M.gguf"):
        expected = [text] if text in files else ["A/m.gguf"]
        assert repository_files.choose(files, references.parse(f"u/r:{text}")) == expected
    assert repository_files.choose(files[:1], references.parse("u/r:M.gguf")) == ["A/m.gguf"]


def test_split_files_come_whole() -> None:
    expected = FILES[-2:]
    assert repository_files.choose(FILES, references.parse("u/r:Q6_K")) == expected
    for part in expected:
        assert repository_files.choose(FILES, references.parse(f"u/r:{part}")) == expected


@pytest.mark.parametrize(
    ("system", "line"),
    [("linux", "`cat PIECES > m-Q8_0.gguf`"), ("win32", "`cmd /c copy /b A+B m-Q8_0.gguf`")],
)
def test_pieces_are_told_with_the_line_that_joins_them_here(
    monkeypatch: pytest.MonkeyPatch, system: str, line: str
) -> None:
    monkeypatch.setattr(sys, "platform", system)
    pieces = ["m-Q8_0.gguf.part1of2", "m-Q8_0.gguf.part2of2"]
    with pytest.raises(NotOnHub, match="only in 2 pieces") as refused:
        repository_files.choose(pieces, references.parse("u/r"))
    assert line in refused.value.remedy


def test_defaults_fall_back() -> None:
    quants = ["M-Q6_K.gguf", "m-Instruct-Q6_K.gguf", "A/M-Q8_0-00001-of-00002.gguf"]
    assert repository_files.of_model(quants, "m.f16.gguf") == [quants[0], quants[2]]
    assert repository_files.choose(["m-Q8_0.gguf", "m-Q5_K.gguf"], references.parse("u/r")) == [
        "m-Q8_0.gguf"
    ]
    assert repository_files.choose(["b.gguf", "a.gguf"], references.parse("u/r")) == ["a.gguf"]
    only_unsloth = ["m-UD-Q4_K_M.gguf", "m-Q2_K.gguf"]
    assert repository_files.choose(only_unsloth, references.parse("u/r")) == ["m-UD-Q4_K_M.gguf"]


def test_quants_that_are_not_there_list_those_that_are() -> None:
    with pytest.raises(NotOnHub) as caught:
        repository_files.choose(FILES, references.parse("u/r:Q3_K"))
    assert caught.value.remedy == "It has: Q6_K, BF16, IQ4_XS, Q2_K, Q4_K_M, Q8_0, UD-Q4_K_M."
    with pytest.raises(NotOnHub):
        repository_files.choose(FILES[:1], references.parse("u/r"))


# --- the curated list -------------------------------------------------------------------------


# Figures are of other machines, and come with where they were published.
NO_FIGURES = "no figures are published; what it brings here shows once it is measured"
EVIDENCE = re.compile(
    rf"{NO_FIGURES}|elsewhere, .*"
    r" \(published in (llama\.cpp (issue|PR) \d+|[\w-]+/[\w.-]+|a report of .+)"
    r"(, \d{1,2} [A-Z][a-z]+ 2026)?\)"
)


def test_every_curated_pair_is_well_formed() -> None:
    pairs = catalogue.pairs()
    assert pairs.pop("starter").target.sha256 == starter.SHA256
    assert 20 <= len(pairs) <= 40
    for name, entry in pairs.items():
        assert installed.check_name(name) == name
        assert entry.kind in ("chat", "code", "reasoning", "starter")
        assert entry.licence
        assert EVIDENCE.fullmatch(entry.evidence), entry.evidence
        assert entry.memory_gb * 1e9 > entry.n_bytes * 0.8
        if entry.draft is not None:
            assert entry.draft.n_bytes < 0.5 * entry.target.n_bytes
        for side in entry.files:
            assert references.parse(str(side.reference)) == side.reference
            assert side.file.endswith(".gguf")
            assert bool(side.sha256) == bool(side.revision)
        assert repository_files.is_model(entry.target.file)


@pytest.mark.parametrize("memory", [4, 8, 12, 16, 24, 64])
def test_every_class_of_memory_has_a_pair_with_a_drafter_of_its_own(memory: int) -> None:
    assert any(
        entry.memory_gb == memory and entry.drafter and entry.kind != "starter"
        for entry in catalogue.pairs().values()
    )


def test_second_choices_are_shown_and_said_to_be_unchecked(hub_world: World) -> None:
    entry = catalogue.pairs()["gpt-oss-20b"]
    hub_world.server.add(entry.target.repo, {entry.target.file: ggufs.model()})
    shown = hub_world.run("show", entry.name).out
    head = "ggml-org/gpt-oss-20b-GGUF:eagle3-gpt-oss-20b-Q8_0.gguf"
    assert f"or          --draft {head} (an EAGLE-3 head)" in shown
    assert "names       as public lists have them; not checked against the Hub" in shown


@pytest.mark.parametrize("name", ["muse-glimmer-30b", "lfm2.5-2.6b", "lfm2.5-8b-a1b"])
def test_a_head_that_can_draft_beside_a_curated_target_is_its_draft(name: str) -> None:
    entry = catalogue.pairs()[name]
    assert entry.architecture in head_checks.TAPPED
    assert entry.draft is not None
    assert "not used" not in entry.notes


def test_a_curated_head_is_pulled_with_its_target(
    hub_world: World, toy_target: Path, tmp_path: Path
) -> None:
    entry = catalogue.pairs()["muse-glimmer-30b"]
    assert entry.draft is not None
    head = write_dflash(tmp_path / "head.gguf").read_bytes()
    files = {entry.target.file: toy_target.read_bytes(), entry.draft.file: head}
    hub_world.server.add(entry.target.repo, files)
    assert hub_world.run("pull", entry.name).code == 0
    found = resolver.resolve(entry.name)
    assert found.draft is not None
    assert (found.target.name, found.draft.name) == (entry.target.file, entry.draft.file)


def test_a_head_that_the_catalogue_only_mentions_leaves_a_pair_its_name(hub_world: World) -> None:
    entry = catalogue.pairs()["gpt-oss-20b"]
    assert entry.draft is None
    target, head = hub_layouts.with_head().values()
    files = {entry.target.file: target, "eagle3-gpt-oss-20b-Q8_0.gguf": head}
    hub_world.server.add(entry.target.repo, files)
    done = hub_world.run("pull", entry.name, "--yes")
    assert f"installed as {entry.name}:" in done.out, done.err
    assert [each.name for each in resolver.resolve(entry.name).drafts] == [*files][1:]
    assert {row.state for row in catalogue.rows() if row.name == entry.name} == {"installed"}


def test_every_gemma_4_comes_with_its_assistant() -> None:
    found = [each for each in catalogue.pairs().values() if each.architecture == "gemma4"]
    assert len(found) > 4
    for entry in found:
        assert "not used" not in entry.notes
        assert entry.draft is not None
        assert entry.draft.file.startswith("mtp-gemma-4-")
        assert not repository_files.is_model(entry.draft.file)  # no model is meant by it


def test_no_curated_head_is_called_unused_that_could_draft() -> None:
    for entry in catalogue.pairs().values():
        if "not used" in entry.notes and re.search("DFlash|DSpark|EAGLE", entry.notes):
            assert entry.architecture not in head_checks.TAPPED, entry.name


def test_llama_cpp_as_it_is_knows_every_curated_architecture(tmp_path: Path) -> None:
    def refusal(architecture: str) -> str:
        path = tmp_path / f"{architecture}.gguf"
        path.write_bytes(ggufs.model(architecture=architecture))
        with pytest.raises(ModelLoadError) as caught:  # it has one tensor, and too few settings
            Model.load(path)
        return caught.value.message

    assert "unknown model architecture" in refusal("none-such")
    for architecture in {entry.architecture for entry in catalogue.pairs().values()}:
        assert "unknown model architecture" not in refusal(architecture)


def test_a_curated_target_without_a_draft_is_pulled_and_loaded_alone(hub_world: World) -> None:
    entry = catalogue.pairs()["granite-4.1-8b"]
    assert entry.draft is None
    hub_world.server.add(entry.target.repo, {entry.target.file: ggufs.model()})
    with pytest.raises(NotOnHub, match="is not on this disk"):
        resolver.resolve(entry.name)
    shown = hub_world.run("show", entry.name).out
    assert "draft       none: granite-4.1-8b has none" in shown
    assert f"drafting    {NO_FIGURES}" in shown
    assert "dialect     thoughts and calls were tried with the chat template ibm-granite" in shown
    assert hub_world.run("pull", f"{entry.target.reference}", "--draft", "none").code == 0
    found = resolver.resolve(entry.name)
    assert (found.target.name, found.draft) == (entry.target.file, None)
    assert hub_world.run("pull", entry.name).code == 0
    row = next(row for row in catalogue.rows() if row.name == entry.name)
    assert (row.state, row.draft, row.evidence) == ("installed", "none", NO_FIGURES)
    assert hub_world.run("rm", entry.name).code == 0


def test_a_damaged_catalogue_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "catalogue.toml"
    monkeypatch.setattr(folders, "shipped", lambda name: path)
    monkeypatch.setattr(catalogue, "in_clone", lambda: False)
    for text in ("[[pair]]\nname = 'x'", "pair = 3", "not toml"):
        path.write_text(text)
        with pytest.raises(LocalspecError, match="cannot be read") as damaged:
            catalogue.pairs()
        assert damaged.value.remedy == install_again()
    monkeypatch.setattr(catalogue, "in_clone", lambda: True)
    with pytest.raises(LocalspecError, match="cannot be read") as damaged:
        catalogue.pairs()
    folder = shlex.quote(str(tmp_path))
    assert damaged.value.remedy == f"Restore it: git -C {folder} restore catalogue.toml"
    path.unlink()
    with pytest.raises(LocalspecError, match="cannot be read"):
        catalogue.pairs()


# --- resolving --------------------------------------------------------------------------------


def test_files_are_taken_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCALSPEC_DATA", str(tmp_path / "data"))
    path = tmp_path / "m.gguf"
    path.write_bytes(ggufs.model())
    found = resolver.resolve(str(path), str(path))
    assert (found.target, found.draft, found.draft_reason) == (path, path, "named")
    alone = resolver.resolve(str(path))
    assert alone.draft is None
    assert "none is known" in alone.draft_reason
    with pytest.raises(ModelFileError, match="does not exist"):
        resolver.resolve(str(tmp_path / "none.gguf"))
    with pytest.raises(ModelFileError, match="is a folder"):
        resolver.resolve(str(tmp_path))
    for odd in ("/" + "x" * 300, "~nobody-at-all/x", "./a\0b"):
        with pytest.raises(ModelFileError):
            resolver.resolve(odd)
    for odd in ("x" * 300, "y" * 300 + "/z", "a\0b", "a/b\0c"):
        with pytest.raises((NotOnHub, BadReference)):
            resolver.resolve(odd)


@pytest.mark.parametrize("text", ["mymodel", "some/mymodel", "./mymodel"])
def test_every_command_takes_a_file_without_an_ending(
    hub_world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "some").mkdir()
    (tmp_path / text).write_bytes(ggufs.model())
    assert resolver.resolve(text).target.resolve() == (tmp_path / text).resolve()
    assert hub_world.run("show", text).code == 0
    assert hub_world.run("pull", text, "--dry-run").code == 0
    assert hub_world.server.seen == []


def test_what_is_not_here_comes_with_the_command_that_fetches_it(hub_world: World) -> None:
    for text, draft, remedy in (
        ("qwen3-8b", None, "Run `localspec pull qwen3-8b`."),
        ("u/r:Q8_0", None, "Run `localspec pull u/r:Q8_0`."),
        ("u/r", "u/d", "Run `localspec pull u/r --draft u/d`."),
        ("u/r", "auto,u/d", "Run `localspec pull u/r --draft auto,u/d`."),
        (str(toy.TARGET), "u/d", f"Run `localspec pull {toy.TARGET} --draft u/d`."),
    ):
        with pytest.raises(NotOnHub) as caught:
            resolver.resolve(text, draft)
        assert caught.value.remedy == remedy
    with pytest.raises(UsageError):
        resolver.resolve(" ")
    assert hub_world.server.seen == []


def test_a_head_alone_comes_with_the_target_that_it_is_for(
    hub_world: World, toy_target: Path, tmp_path: Path
) -> None:
    head = write_dflash(tmp_path / "head.gguf").read_bytes()
    hub_world.server.add("ann/Head-GGUF", {"dflash-head.gguf": head})
    asked = (str(toy_target), "auto,ann/Head-GGUF")
    with pytest.raises(NotOnHub) as caught:
        resolver.resolve(*asked)
    _, *words = shlex.split(caught.value.remedy.split("`")[1])
    done = hub_world.run(*words)
    assert done.code == 0, done.err
    assert [each.name for each in resolver.resolve(*asked).drafts] == ["dflash-head.gguf"]


@pytest.mark.parametrize("draft", ["none", "lookup", str(toy.DRAFT)])
def test_a_pair_whose_draft_is_gone_answers_without_it(hub_world: World, draft: str) -> None:
    target, gone = (InstalledModel((path,)) for path in (str(toy.TARGET), "/gone.gguf"))
    installed.save(InstalledPair("mine", target, gone))
    assert resolver.resolve("mine", draft).target == toy.TARGET
    with pytest.raises(ModelFileError, match="a file of the pair mine is gone"):
        resolver.resolve("mine", f"auto,{toy.DRAFT}")


def test_cached_references_resolve_without_a_network(
    hub_world: World, pair: tuple[Repo, Repo]
) -> None:
    target, _ = pair
    hub_world.run("pull", "ann/Big-GGUF", "--draft", "ann/Small-GGUF")
    hub_world.server.seen.clear()
    for text in ("ann/Big-GGUF", "ann/Big-GGUF:Q4_K_M", "hf.co/ann/Big-GGUF", "ann/Big-GGUF@main"):
        found = resolver.resolve(text)
        assert found.target.name == "big-Q4_K_M.gguf"
        assert found.draft is not None  # of the pair that was pulled
        assert found.draft_reason == "as in the pair big"
    assert resolver.resolve(f"ann/Big-GGUF@{target.commit[:8]}").target.exists()
    with pytest.raises(NotOnHub):
        resolver.resolve("ann/Big-GGUF:Q8_0")
    assert hub_world.server.seen == []


def test_a_dangling_link_is_no_model(hub_world: World, pair: tuple[Repo, Repo]) -> None:
    target, _ = pair
    hub_world.run("pull", "ann/Big-GGUF", "--draft", "none")
    hub_world.snapshot("ann/Big-GGUF", target.commit, "big-Q4_K_M.gguf").resolve().unlink()
    with pytest.raises(NotOnHub):
        resolver.resolve("ann/Big-GGUF")
    with pytest.raises(ModelFileError) as caught:
        resolver.resolve("big")
    assert f"@{target.commit} --draft none --name big" in caught.value.remedy
    assert hub_world.run("pull", "big").code == 0
    assert resolver.resolve("big").target.exists()


# --- records ----------------------------------------------------------------------------------

PAIR = InstalledPair("mine", InstalledModel(("/t.gguf",), n_bytes=5, licence="mit"), None)


def test_records_survive_a_round_trip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCALSPEC_DATA", str(tmp_path))
    draft = InstalledModel(("/a", "/b"), "u/r:a@c", "u/r", "c", ("a", "b"), ("1", "2"), 7)
    pair = InstalledPair("mine", PAIR.target, draft, (InstalledModel(("/head.gguf",)),))
    installed.save(pair)
    assert installed.find("MINE") == pair
    assert [model.paths[0] for model in pair.models] == ["/t.gguf", "/a", "/head.gguf"]
    assert installed.all_pairs() == [pair]
    assert not pair.complete
    installed.forget("mine")
    assert installed.find("mine") is None
    assert installed.find("../mine") is None


MODEL = '{"paths": ["/t.gguf"], "n_bytes": %s}'
RECORD = '{"format": 1, "name": "mine", "draft": null, "target": %s}'


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "[]", "null", '{"format": 9}', '{"format": 1}', "\xff", "[" * 100_000),
        RECORD % (MODEL % "1e999"),
        RECORD % (MODEL % ("9" * 400)),
        RECORD % (MODEL % '"5"'),
        RECORD % (MODEL % -5),
        RECORD % '{"paths": [], "n_bytes": 5}',
        RECORD % '{"paths": "/t.gguf", "n_bytes": 5}',
        RECORD % ("[" * 100_000),
    ],
)
def test_damaged_records_are_said_and_can_be_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setenv("LOCALSPEC_DATA", str(tmp_path))
    installed.save(PAIR)
    (installed.folder() / "mine.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(LocalspecError, match="record of mine is damaged"):
        installed.find("mine")
    assert installed.all_pairs() == []
    assert installed.damaged() == ["mine"]
    (installed.folder() / "mine.json").write_text(RECORD % (MODEL % 5))
    assert installed.find("mine") == InstalledPair(
        "mine", InstalledModel(("/t.gguf",), n_bytes=5), None
    )


def test_records_from_when_a_pair_had_no_more_than_a_draft_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCALSPEC_DATA", str(tmp_path))
    installed.save(PAIR)
    path = installed.folder() / "mine.json"
    model = MODEL % 5
    path.write_text(f'{{"format": 1, "name": "mine", "draft": {model}, "target": {model}}}')
    found = installed.find("mine")
    own = InstalledModel(("/t.gguf",), n_bytes=5)
    assert found == InstalledPair("mine", own, own)
    installed.save(found)
    assert json.loads(path.read_text())["format"] == 2
    assert installed.find("mine") == found


def test_a_write_that_fails_leaves_the_old_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCALSPEC_DATA", str(tmp_path))
    installed.save(PAIR)

    def fail(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(LocalspecError, match="cannot be recorded"):
        installed.save(InstalledPair("mine", PAIR.target, PAIR.target))
    assert installed.find("mine") == PAIR
    assert [path.name for path in installed.folder().iterdir()] == ["mine.json"]


# --- list, show and rm ------------------------------------------------------------------------


def test_list_shows_everything(hub_world: World, pair: tuple[Repo, Repo]) -> None:
    hub_world.run("pull", "ann/Big-GGUF", "--draft", "ann/Small-GGUF", "--name", "mine")
    done = hub_world.run("list")
    assert done.code == 0
    for word in ("starter", "mine", "installed", "qwen3-8b", "available", "Apache-2.0"):
        assert word in done.out
    data = json.loads(hub_world.run("list", "--json").out)
    rows = {row["name"]: row for row in data["pairs"]}
    assert rows["mine"]["state"] == "installed"
    assert rows["mine"]["verified"] is True
    ours = rows["starter"]["bytes"] if rows["starter"]["state"] == "installed" else 0
    assert rows["mine"]["bytes"] + ours == data["used_bytes"]
    assert rows["llama-3.3-70b"]["memory"]["needed_bytes"] > 43e9
    assert [rows[name]["memory"]["rough"] for name in ("mine", "qwen3-8b")] == [False, True]
    assert re.search(r"qwen3-8b .* ~6\.\d+ GB", done.out)
    assert "~ goes by the size of its files alone" in done.out
    assert set(rows) == {"mine", *catalogue.pairs()}
    assert data["pairs"][0]["name"] == "starter"
    hub_world.snapshot("ann/Big-GGUF", pair[0].commit, "big-Q4_K_M.gguf").unlink()
    data = json.loads(hub_world.run("list", "--json").out)
    assert {row["name"]: row for row in data["pairs"]}["mine"]["state"] == "incomplete"


def test_show_of_a_pair(hub_world: World) -> None:
    toy.install(hub_world.data)
    done = hub_world.run("show", "toy")
    assert done.code == 0, done.err
    assert "vocabulary  matches: the same" in done.out
    data = json.loads(hub_world.run("show", "toy", "--json", "--ctx-size", "512").out)
    assert data["vocabulary"]["compatible"] is True
    assert data["memory"]["n_ctx"] == 512
    assert data["memory"]["verdict"] == "fits"
    whole = json.loads(hub_world.run("show", "toy", "--json", "--ctx-size", "0").out)
    assert whole["memory"]["n_ctx"] == read_header(toy.TARGET).setting("context_length") > 512


def test_show_of_lookup_alone(hub_world: World) -> None:
    toy.install(hub_world.data)
    done = hub_world.run("show", "toy", "--draft", "lookup")
    assert done.code == 0, done.err
    assert "draft       none: what repeats is copied (lookup)" in done.out
    own = hub_world.run("show", "toy", "--draft", "auto")
    assert own.code == 0, own.err
    assert "vocabulary  matches" in own.out


@pytest.mark.slow
def test_show_tells_how_much_of_a_text_is_spelled_alike(hub_world: World, tmp_path: Path) -> None:
    toy.install(hub_world.data)
    other = gguf_models.write_renumbered(tmp_path / "other.gguf", fewer=1000)
    done = hub_world.run("show", "toy", "--draft", str(other))
    assert done.code == 0, done.err
    assert "another one, cross-vocabulary: " in done.out
    assert "of a text is spelled alike" in done.out
    data = json.loads(hub_world.run("show", "toy", "--draft", str(other), "--json").out)
    assert data["vocabulary"]["compatible"] is False
    assert 0.5 < data["vocabulary"]["alike"] < 1


def test_show_reports_an_unfit_draft_without_failing(hub_world: World, tmp_path: Path) -> None:
    toy.install(hub_world.data)
    odd = tmp_path / "odd.gguf"
    odd.write_bytes(ggufs.model([f"x{n}" for n in range(10)]))
    done = hub_world.run("show", "toy", "--draft", str(odd))
    assert done.code == 0, done.err
    assert "vocabulary  does not match:" in done.out


def test_rm_removes_what_no_other_pair_uses(hub_world: World, pair: tuple[Repo, Repo]) -> None:
    target, _ = pair
    hub_world.run("pull", "ann/Big-GGUF", "--draft", "ann/Small-GGUF", "--name", "one")
    hub_world.run("pull", "ann/Small-GGUF", "--draft", "none", "--name", "two")
    done = hub_world.run("rm", "ONE")
    assert done.code == 0, done.err
    assert "the pair two uses it" in done.out
    assert f"removed one: {target.size('big-Q4_K_M.gguf') / 1000:.3g} kB freed" in done.out
    assert not (hub_world.cache / "models--ann--Big-GGUF").exists()
    assert resolver.resolve("two").target.exists()
    assert hub_world.run("rm", "two").code == 0
    assert not (hub_world.cache / "models--ann--Small-GGUF").exists()
    again = hub_world.run("rm", "two")
    assert again.code == 1
    assert "no pair named two is installed" in again.err


def test_rm_of_all_removes_pairs_and_names_the_folders_that_stay(
    hub_world: World, pair: tuple[Repo, Repo], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCALSPEC_CACHE", str(tmp_path / "measured"))
    monkeypatch.setenv("LOCALSPEC_CONFIG", str(hub_world.data))  # as on macOS and Windows
    hub_world.run("pull", "ann/Big-GGUF", "--draft", "ann/Small-GGUF", "--name", "one")
    hub_world.run("pull", "ann/Small-GGUF", "--draft", "none", "--name", "two")
    (installed.folder() / "hurt.json").write_text("{")
    starter.converted().parent.mkdir(parents=True, exist_ok=True)
    starter.converted().write_bytes(bytes(7000))
    done = hub_world.run("rm", "--all")
    assert done.code == 0, done.err
    for name in ("one", "two", "hurt", f"{STARTER}: 7 kB freed"):
        assert f"removed {name}" in done.out
    stays = [line for line in done.out.splitlines() if line.startswith("stays: ")]
    assert stays == [
        f"stays: {folders.data_folder()} (conversations, what was trained here, settings)",
        f"stays: {tmp_path / 'measured'} (measurements)",
    ]
    assert not [*hub_world.cache.glob("models--*")]
    assert installed.all_pairs() == []
    assert installed.damaged() == []
    assert not starter.converted().exists()
    again = hub_world.run("rm", "--all")
    assert (again.code, again.out.splitlines()[0]) == (0, "no pair is installed")


@pytest.mark.parametrize("arguments", [(), ("one", "--all")])
def test_rm_takes_a_pair_or_all(hub_world: World, arguments: tuple[str, ...]) -> None:
    done = hub_world.run("rm", *arguments)
    assert done.code == 2
    assert "the name of a pair, or --all" in done.err


def test_rm_frees_a_cache_however_its_place_is_spelled(
    hub_world: World, pair: tuple[Repo, Repo], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to("real")
    for pulled, removed in (("real/hub", "real/hub"), ("link/hub", "real/hub")):
        (tmp_path / "real").mkdir(exist_ok=True)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", pulled)
        assert hub_world.run("pull", "ann/Big-GGUF", "--draft", "none").code == 0
        monkeypatch.setattr(constants, "HF_HUB_CACHE", removed)
        done = hub_world.run("rm", "big")
        assert "kept" not in done.out
        assert "removed big: 68.8 kB freed" in done.out


def test_rm_leaves_the_other_files_of_a_repository(hub_world: World) -> None:
    files = {"m-Q4_K_M.gguf": ggufs.model(), "m-Q8_0.gguf": ggufs.model(seed=2)}
    repo = hub_world.server.add("ann/Two", dict(files))
    hub_world.run("pull", "ann/Two:Q4_K_M", "--draft", "none", "--name", "a")
    hub_world.run("pull", "ann/Two:Q8_0", "--draft", "none", "--name", "b")
    hub_world.run("rm", "a")
    assert list(hub_world.blobs("ann/Two")) == [repo.etag("m-Q8_0.gguf")]
    assert resolver.resolve("b").target.exists()
    assert resolver.resolve("ann/Two").target.name == "m-Q8_0.gguf"


def test_rm_of_all_pairs_leaves_nothing_of_bytes_with_two_names(hub_world: World) -> None:
    files = dict.fromkeys(("m-Q4_K_M.gguf", "m-Q8_0.gguf"), ggufs.model())
    repo = hub_world.server.add("ann/Two", dict(files))
    hub_world.run("pull", "ann/Two:Q4_K_M", "--draft", "none", "--name", "a")
    hub_world.run("pull", "ann/Two:Q8_0", "--draft", "none", "--name", "b")
    assert "removed a: 0 bytes freed" in hub_world.run("rm", "a").out
    assert resolver.resolve("b").target.exists()
    freed = f"removed b: {repo.size('m-Q8_0.gguf') / 1000:.3g} kB freed"
    assert freed in hub_world.run("rm", "b").out
    assert not (hub_world.cache / "models--ann--Two").exists()


def test_rm_keeps_what_another_pair_reaches_through_a_link(
    hub_world: World, pair: tuple[Repo, Repo], tmp_path: Path
) -> None:
    hub_world.run("pull", "ann/Big-GGUF", "--draft", "none", "--name", "one")
    link = tmp_path / "link.gguf"
    link.symlink_to(resolver.resolve("one").target)
    assert hub_world.run("pull", str(link), "--draft", "none", "--name", "two").code == 0
    assert "the pair two uses it" in hub_world.run("rm", "one").out
    assert link.exists()


def test_rm_leaves_bytes_that_another_snapshot_uses(
    hub_world: World, pair: tuple[Repo, Repo]
) -> None:
    target, _ = pair
    hub_world.run("pull", "ann/Big-GGUF", "--draft", "none", "--name", "one")
    other = hub_world.snapshot("ann/Big-GGUF", "f" * 40, "big-Q4_K_M.gguf")
    other.parent.mkdir()
    other.symlink_to(f"../../blobs/{target.etag('big-Q4_K_M.gguf')}")
    done = hub_world.run("rm", "one")
    assert "0 bytes freed" in done.out
    assert other.exists()


def test_rm_of_a_curated_name_clears_its_own_unfinished_pull_alone(hub_world: World) -> None:
    entry, other = (catalogue.pairs()[name] for name in ("qwen3.8-27b", "qwen3.8-27b-q3"))
    repo, name = entry.target.repo, entry.target.file
    assert other.target.repo == repo
    file = RemoteFile(repo, "c" * 40, name, 9000, "a" * 64)
    unfinished_pulls.begin(entry.name, [file])
    hub_cache.prepare(file)
    download.part_path(file).write_bytes(bytes(5000))
    refused = hub_world.run("rm", other.name)
    assert refused.code == 1
    assert "there is nothing to remove" in refused.err
    done = hub_world.run("rm", entry.name)
    assert done.code == 0, done.err
    assert "5 kB freed" in done.out
    assert not hub_cache.repo_folder(repo).exists()


def test_rm_of_all_clears_unfinished_pulls_but_one_that_runs(hub_world: World) -> None:
    for repo in ("ann/Fetched", "ann--x/Left--over", "bob/Left"):
        blobs = hub_cache.repo_folder(repo) / "blobs"
        blobs.mkdir(parents=True)
        (blobs / f"{'a' * 64}.part.incomplete").write_bytes(bytes(5000))
    fetched = RemoteFile("ann/Fetched", "", "", 0, "a" * 64)
    with hub_cache.locked(fetched, RetryPolicy()):
        refused = hub_world.run("rm", "--all")
        assert refused.code == 1
        assert "ann/Fetched is being fetched by another process" in refused.err
    assert [folder.name for folder in hub_cache.repo_folders()] == ["models--ann--Fetched"]
    done = hub_world.run("rm", "--all")
    assert done.code == 0, done.err
    assert "removed unfinished downloads of ann/Fetched: 5 kB freed" in done.out
    assert hub_cache.repo_folders() == []


def test_rm_forgets_damaged_records(hub_world: World) -> None:
    installed.save(PAIR)
    for name in ("mine", "lookup"):  # a new pair cannot be called the other
        (installed.folder() / f"{name}.json").write_text("{")
        assert f"record of {name} is damaged" in hub_world.run("list").err
        assert hub_world.run("rm", name).code == 0
        assert installed.damaged() == []


def test_files_whose_names_are_no_pairs_are_passed_over(hub_world: World) -> None:
    installed.save(PAIR)
    for name in ("My Pair", "Other", "-x"):
        (installed.folder() / f"{name}.json").write_text("{")
    assert installed.damaged() == []
    done = hub_world.run("rm", "--all")
    assert done.code == 0, done.err
    assert installed.all_pairs() == []
