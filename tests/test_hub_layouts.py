"""Which files of a repository are taken: of 25 real ones, of made up ones, and of hostile ones."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from localspec.errors import LocalspecError
from localspec.loading.measurements import ranking
from localspec.loading.measurements.ranking import PairCosts
from localspec.pairs.disk import installed
from localspec.pairs.hub.retries import RetryPolicy
from localspec.pairs.names import catalogue, resolver
from localspec.pairs.report import model_source
from localspec.pairs.report.examine import PairReport, examine
from localspec.pairs.report.model_source import ModelSource
from tests.support import ggufs, hub_layouts
from tests.support.hub_layouts import head, model
from tests.support.hub_server import Content, Hollow
from tests.support.hub_world import World, world

# Else whatever looks for drafts would read the starter's 49,000 tokens.
pytestmark = pytest.mark.usefixtures("no_package")

QUICK = RetryPolicy(pauses=(0.0, 0.0))
GB = 1_000_000_000
REAL, MADE = "hub_layouts.jsonl", "hub_layouts_made.jsonl"

# Questions that are not answered as the file says, and why.
EXCEPTIONS = {
    ("TheBloke/Airoboros-L2-70b-2.2.1-GGUF", "Q6_K"): "pieces cut at any byte are not joined",
    ("TheBloke/Airoboros-L2-70b-2.2.1-GGUF", "Q8_0"): "the same",
    ("unsloth/Qwen3.8-Flash-Next-GGUF", "UD-Q4_K_XL draft-mtp"): (
        "this llama.cpp has no graph for an MTP layer of qwen4exp"
    ),
    ("unsloth/Qwen3.8-Flash-Next-GGUF", "via draft-mtp"): "the same",
}


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with world(tmp_path_factory.mktemp("layouts")) as found:
        for layout in (*hub_layouts.layouts(REAL), *hub_layouts.layouts(MADE)):
            found.server.add(layout["repo"], hub_layouts.files(layout))
        for architecture in ("qwen35", "gemma4", "qwen3", "deepseek4", "qwen4exp"):
            file = Hollow(model(architecture), 100 * GB)
            found.server.add(f"ann/{architecture}-GGUF", {"big-Q4_K_M.gguf": file})
        yield found


def looked(pair: str, draft: str) -> PairReport | None:
    """The report about a pair; None if it is refused, which takes a reason and a remedy."""
    try:
        return examine(pair, draft, QUICK, scan=False)
    except LocalspecError as error:
        if not (error.message and error.remedy):
            raise
        return None


def answered(layout: Mapping[str, Any], ask: Mapping[str, Any]) -> list[str]:
    """The files that are taken for one question; empty if all are refused."""
    repo, quant = layout["repo"], ask.get("quant")
    named = f"{repo}:{quant}" if quant else repo
    if "head" not in ask and "hfd" not in ask:
        found = looked(named, "none")
        return [file.name for file in found.target.files] if found else []
    if ask.get("target"):
        found = looked(named, (ask["head_type"] or "").removeprefix("draft-"))
    else:
        architecture = hub_layouts.TARGETS.get(layout["target_arch"], layout["target_arch"])
        via = f"{repo}:{ask['head']}" if "via" in ask else ask.get("hfd", named)
        found = looked(f"ann/{architecture}-GGUF", via)
    return [file.name for file in found.draft.files] if found and found.draft else []


def wanted(ask: Mapping[str, Any]) -> list[str]:
    """The files that a careful tool takes, or, if the case names none, those llama.cpp takes."""
    better = ask.get("better_head", ask.get("better"))
    if better is None:
        better = ask["head"] if "head" in ask else ask["expect"]
    files = [better] if isinstance(better, str) else better or []
    return [name for name in files if name != "preset.ini"]


def key(ask: Mapping[str, Any]) -> str:
    words = ("via" if "via" in ask else None, ask.get("quant"), ask.get("head_type"))
    return " ".join(filter(None, words))


Wrong = dict[tuple[str, str], tuple[list[str], list[str]]]


def asked_of(repositories: str) -> tuple[Wrong, int]:
    """Questions with other files than wanted: those taken and wanted; the number of questions."""
    wrong, asked = Wrong(), 0
    for layout in hub_layouts.layouts(repositories):
        for ask in layout["asks"]:
            asked += 1
            found = answered(layout, ask)
            if found != wanted(ask):
                wrong[layout["repo"], key(ask)] = (found, wanted(ask))
    return wrong, asked


def test_the_right_files_of_real_repositories_are_taken(hub: World) -> None:
    wrong, asked = asked_of(REAL)
    assert asked == 150
    assert {each: found for each, (found, _) in wrong.items() if found} == {}  # refused, no more
    assert wrong.keys() == EXCEPTIONS.keys()


def test_the_right_files_of_repositories_named_like_real_ones_are_taken(hub: World) -> None:
    """Names by the habits of publishers of 2025 and 2026, put together for this test."""
    assert asked_of(MADE) == ({}, 69)


# --- hostile ones -----------------------------------------------------------------------------

BIG = Hollow(model(), 4 * GB)
CUT = Hollow(b"GGUF", 134)
LLAMA = {"model-Q4_K_M.gguf": BIG, "model-Q8_0.gguf": Hollow(model(), 8 * GB)}


def of(beginning: bytes, size: int = GB) -> Hollow:
    return Hollow(beginning, size)


def split(stem: str, count: int, *, without: int = 0) -> dict[str, Hollow]:
    """The parts of a split model; the first one has no weights."""
    first = model(tensors=False, parts=count)
    return {
        f"{stem}-{at:05}-of-{count:05}.gguf": of(first if at == 1 else model())
        for at in range(1, count + 1)
        if at != without
    }


# A repository's files, the reference asked for, and the files taken; empty if it is refused.
HOSTILE: dict[str, tuple[Mapping[str, Content], str, list[str]]] = {
    "a vocabulary alone": ({"ggml-vocab-Q4_K_M.gguf": of(model(tensors=False))}, "", []),
    "a vocabulary called a model": (
        {"a-Q4_K_M.gguf": of(model(tensors=False)), "b-Q4_K_M.gguf": BIG},
        "",
        ["b-Q4_K_M.gguf"],
    ),
    "an adapter": (
        {"a-Q4_K_M.gguf": of(model(kind="adapter")), "b-Q4_K_M.gguf": BIG},
        ":Q4_K_M",
        ["b-Q4_K_M.gguf"],
    ),
    "an adapter alone": ({"a-Q4_K_M.gguf": of(model(kind="adapter"))}, ":Q4_K_M", []),
    "a matrix of importance": (
        {"m-Q4_K_M.imatrix.gguf": of(model(kind="imatrix")), **LLAMA},
        "",
        ["model-Q4_K_M.gguf"],
    ),
    "a matrix alone": ({"m-imatrix.gguf": of(model(kind="imatrix"))}, "", []),
    "a projector by its header": (
        {"a-Q4_K_M.gguf": of(model("clip")), **LLAMA},
        ":Q4_K_M",
        ["model-Q4_K_M.gguf"],
    ),
    "a projector by its name": ({"a.MMPROJ-Q4_K_M.gguf": BIG}, ":Q4_K_M", []),
    "sound beside text": ({"tts/a-tts-F16.gguf": BIG, "audio/a-F16.gguf": BIG}, ":F16", []),
    "an assistant before its model": (
        {"a-it-assistant.Q4_K_M.gguf": of(head("mtp", "gemma4")), "a-it.Q4_K_M.gguf": BIG},
        "",
        ["a-it.Q4_K_M.gguf"],
    ),
    "an assistant under a model's name": (
        {"a-Q4_K_M.gguf": of(head("mtp", "gemma4")), "b-Q4_K_M.gguf": BIG},
        "",
        ["b-Q4_K_M.gguf"],
    ),
    "MTP layers under a model's name": (
        {"a-Q4_K_M.gguf": of(head("mtp", "qwen35")), "b-Q4_K_M.gguf": BIG},
        "",
        ["b-Q4_K_M.gguf"],
    ),
    "DSpark in the middle of a name": (
        {"a-DSpark-Q4_K_M.gguf": of(head("dspark")), "b-Q4_K_M.gguf": BIG},
        "",
        ["b-Q4_K_M.gguf"],
    ),
    "heads alone": ({"mtp-a-Q4_K_M.gguf": of(head("mtp", "qwen35"))}, "", []),
    "an embedding model": ({"a-Q4_K_M.gguf": of(model("bert"))}, "", []),
    "a part that is missing": (split("a-Q4_K_M", 3, without=2), "", []),
    "a part that is missing, and another quant": (
        {**split("a-Q4_K_M", 3, without=3), "a-Q8_0.gguf": BIG},
        "",
        ["a-Q8_0.gguf"],
    ),
    "whole, and half split": (
        {**split("a-Q4_K_M", 3, without=2), "a-Q4_K_M.gguf": BIG},
        ":Q4_K_M",
        ["a-Q4_K_M.gguf"],
    ),
    "parts of two uploads": (
        {**split("a-Q8_0", 2, without=2), **split("a-Q8_0", 4)},
        ":Q8_0",
        [*split("a-Q8_0", 4)],
    ),
    "a first part without weights": (split("q/a-Q4_K_M", 2), "", [*split("q/a-Q4_K_M", 2)]),
    "pieces to be joined": ({"a.Q8_0.gguf.part1of2": BIG, "a.Q8_0.gguf.part2of2": BIG}, "", []),
    "pieces with letters": ({"a.gguf-split-a": BIG, "a.gguf-split-b": BIG}, ":Q8_0", []),
    "BF16 where F16 is asked for": ({"a-BF16.gguf": BIG}, ":F16", []),
    "TQ1_0 where Q1_0 is asked for": ({"a-TQ1_0.gguf": BIG}, ":Q1_0", []),
    "IQ4_XS where Q4_XS is asked for": ({"a-IQ4_XS.gguf": BIG}, ":Q4_XS", []),
    "a folder of another quant": ({"Q8_0/a-Q4_K_M.gguf": BIG}, ":Q8_0", []),
    "a folder alone names the quant": ({"Q8_0/a.gguf": BIG}, ":q8_0", ["Q8_0/a.gguf"]),
    "a capital ending": ({"A-q4_k_m.GGUF": BIG}, "", ["A-q4_k_m.GGUF"]),
    "one bit first": ({"a-IQ1_M.gguf": BIG, "a-UD-Q4_K_XL.gguf": BIG}, "", ["a-UD-Q4_K_XL.gguf"]),
    "sixteen bits first": ({"a-BF16.gguf": BIG, "a-Q5_K_M.gguf": BIG}, "", ["a-Q5_K_M.gguf"]),
    "a way out of the folder": ({"../a-Q4_K_M.gguf": BIG}, "", []),
    "a way out by a backslash": ({"..\\a-Q4_K_M.gguf": BIG}, "", []),
    "a link of a few bytes": ({"a-Q4_K_M.gguf": CUT}, "", []),
    "settings of a server": ({"preset.ini": b"[a]"}, ":Q4_K_M", []),
    "settings and a model": ({"preset.ini": b"[a]", **LLAMA}, "", ["model-Q4_K_M.gguf"]),
    "weights of another program": ({"model-00001-of-00002.safetensors": BIG}, "", []),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_no_wrong_file_of_a_hostile_repository_comes(hub: World, name: str) -> None:
    files, asked, expected = HOSTILE[name]
    hub.server.add("ann/Hostile-GGUF", files)
    found = looked(f"ann/Hostile-GGUF{asked}", "none")
    assert ([each.name for each in found.target.files] if found else []) == expected


def test_the_parts_of_a_split_model_are_counted(hub: World) -> None:
    for count, told in ((2, "a-Q4_K_M-00001-of-00002.gguf and 1 more part"), (3, "2 more parts")):
        hub.server.add("ann/Split-GGUF", split("a-Q4_K_M", count))
        found = looked("ann/Split-GGUF", "none")
        assert found is not None
        assert found.target.label.endswith(told)


# The place of a head in the model's repository, and whether it is offered.
BESIDE: dict[str, tuple[str, Hollow, bool]] = {
    "fits": ("eagle3-a.gguf", of(head("eagle3")), True),
    "a folder of its own": ("EAGLE3/a-eagle3-Q8_0.gguf", of(head("eagle3")), True),
    "of another kind than its name": ("mtp-a.gguf", of(head("eagle3")), False),
    "of another width": ("eagle3-a.gguf", of(head("eagle3", width=96)), False),
    "of other layers": ("eagle3-a.gguf", of(head("eagle3", layers=(0, 1, 9))), False),
    "of other tokens": ("eagle3-a.gguf", of(head("eagle3", words=301)), False),
    "of another architecture": ("mtp-a.gguf", of(head("mtp", "qwen35")), False),
    "larger than the model": ("eagle3-a.gguf", of(head("eagle3"), 9 * GB), False),
    "a whole model": ("dflash-a.gguf", of(model()), False),
    "damaged": ("dflash-a.gguf", of(b"GGUF"), False),
    "a part of a split file": ("dflash-a-00002-of-00002.gguf", of(head("dflash")), False),
    "out of the folder": ("../dflash-a.gguf", of(head("dflash")), False),
}


@pytest.mark.parametrize("name", BESIDE)
def test_a_head_is_offered_only_if_its_header_fits(hub: World, name: str) -> None:
    path, file, fits = BESIDE[name]
    hub.server.add("ann/Beside-GGUF", {**LLAMA, path: file})
    found = looked("ann/Beside-GGUF", "auto")
    assert found is not None
    assert (found.offer is not None) == fits
    if found.offer is not None:
        assert found.offer.head.files[0].name == path


def test_of_several_heads_llama_cpps_is_offered_with_a_smaller_one(hub: World) -> None:
    heads = {
        f"{kind}-a-{quant}.gguf": of(head(kind, "qwen35"), size)
        for kind in ("dflash", "mtp")
        for quant, size in (("Q8_0", 300_000_000), ("Q4_0", 200_000_000), ("BF16", 600_000_000))
    }
    target = {"a-Q8_0.gguf": Hollow(model("qwen35"), 8 * GB)}
    hub.server.add("ann/Several-GGUF", {**target, **heads})
    found = looked("ann/Several-GGUF", "auto")
    assert found is not None
    assert found.offer is not None
    assert found.offer.smaller is not None
    taken = (found.offer.kind, found.offer.head.files[0].name, found.offer.smaller.files[0].name)
    assert taken == ("mtp", "mtp-a-Q8_0.gguf", "mtp-a-Q4_0.gguf")


@pytest.mark.parametrize("status", [400, 403, 503])
@pytest.mark.parametrize("failing", ["Q8_0", "Q4_0"])
def test_a_head_that_fits_is_offered_where_another_cannot_be_read(
    hub_world: World, failing: str, status: int
) -> None:
    """A Hub that has an internal error is not asked about the next ones, and that is said."""
    sizes = {"Q8_0": 300_000_000, "Q4_0": 200_000_000}
    heads = {f"eagle3-a-{quant}.gguf": of(head("eagle3"), size) for quant, size in sizes.items()}
    target = {"a-Q8_0.gguf": Hollow(model(), 8 * GB)}
    hub_world.server.add("ann/Beside-GGUF", {**target, **heads})
    hub_world.server.fault(f"eagle3-a-{failing}", status=status, times=1000)
    found = examine("ann/Beside-GGUF", "auto", QUICK, scan=False)
    told = "heads next to it cannot be read: " in found.draft_reason
    if failing == "Q8_0" and status == 503:
        assert (found.offer, told) == (None, True)
        return
    assert found.offer is not None
    other = next(quant for quant in sizes if quant != failing)
    assert found.offer.head.files[0].name == f"eagle3-a-{other}.gguf"
    assert (found.offer.smaller, told) == (None, False)


# --- the command ------------------------------------------------------------------------------


def add_pair(hub: World) -> None:
    """A small model with a head next to it."""
    hub.server.add("ann/Pair-GGUF", hub_layouts.with_head())


def test_pull_says_which_head_there_is_and_fetches_it_when_told(hub_world: World) -> None:
    add_pair(hub_world)
    without = hub_world.run("pull", "ann/Pair-GGUF", "--name", "without")
    assert without.code == 0, without.err
    assert "head        not used yet: eagle3-a.gguf, 900 kB, fits" in without.out
    assert resolver.resolve("without").drafts == ()
    assert hub_world.run("pull", "ann/Pair-GGUF", "--yes", "--name", "both").code == 0
    (draft,) = resolver.resolve("both").drafts
    assert draft.name == "eagle3-a.gguf"
    named = hub_world.run("pull", "ann/Pair-GGUF", "--draft", "eagle3", "--name", "named")
    assert named.code == 0, named.err
    assert resolver.resolve("named").drafts == (draft,)


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="a pseudo-terminal")
def test_what_pull_asks_is_seen_where_its_output_goes_to_a_file(
    hub_world: World, tmp_path: Path
) -> None:
    import pexpect  # noqa: PLC0415 - Windows has none

    add_pair(hub_world)
    log, python = tmp_path / "log", shlex.quote(sys.executable)
    line = f"exec {python} -m localspec pull ann/Pair-GGUF --name both > {log}"
    environment = {**os.environ, **hub_world.environment()}
    child = pexpect.spawn("/bin/sh", ["-c", line], env=environment, timeout=60)
    child.expect("eagle3-a.gguf, 900 kB")
    child.expect(r"Fetch it as well, 900 kB\? \[Y/n\]:")
    child.send("\r")
    child.expect(pexpect.EOF)
    assert len(resolver.resolve("both").drafts) == 1
    assert "Fetch it" not in log.read_text()


def test_list_names_a_head_next_to_an_installed_target_without_the_network(
    hub_world: World,
) -> None:
    add_pair(hub_world)
    assert hub_world.run("pull", "ann/Pair-GGUF", "--name", "without").code == 0
    assert "not used yet" not in hub_world.run("list", "--no-scan").out
    assert hub_world.run("pull", "ann/Pair-GGUF", "--yes", "--name", "both").code == 0
    asked = len(hub_world.server.seen)
    listed = hub_world.run("list", "--no-scan").out
    data = json.loads(hub_world.run("list", "--no-scan", "--json").out)
    assert len(hub_world.server.seen) == asked
    shown = hub_world.run("show", "without", "--no-scan").out
    (line,) = re.findall("head        not used yet: (.*)", shown)
    assert "eagle3-a.gguf, 900 kB, fits: --draft auto,eagle3 adds it" in line
    assert f"\nwithout: {line}\n" in listed
    assert "\nboth: " not in listed
    heads = {row["name"]: row["offered_head"] for row in data["pairs"]}
    assert heads["without"]["bytes"] == 900_000
    assert heads["both"] is None


def test_list_reads_no_further_header_where_no_name_hints_at_a_head(
    hub_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_pair(hub_world)
    assert hub_world.run("pull", "ann/Pair-GGUF", "--name", "mine").code == 0
    folder = resolver.resolve("mine").target.parent
    (folder / "another-Q8_0.gguf").write_bytes(b"GGUF")
    read: list[str] = []
    local = model_source.local

    def noted(path: Path) -> ModelSource:
        read.append(path.name)
        return local(path)

    monkeypatch.setattr(model_source, "local", noted)
    assert hub_world.run("list", "--no-scan").code == 0
    assert read == []
    (folder / "eagle3-damaged.gguf").write_bytes(b"GGUF")
    done = hub_world.run("list", "--no-scan")
    assert done.code == 0
    assert read == ["a-Q8_0.gguf", "eagle3-damaged.gguf"]
    assert "not used yet" not in done.out


def test_a_repository_named_as_a_draft_means_its_head_before_and_after(hub_world: World) -> None:
    add_pair(hub_world)
    done = hub_world.run("pull", "ann/Pair-GGUF", "--draft", "ann/Pair-GGUF:Q8_0", "--name", "it")
    assert done.code == 0, done.err
    named = resolver.resolve("ann/Pair-GGUF", "ann/Pair-GGUF:Q8_0", scan=False)
    assert named.drafts == resolver.resolve("it").drafts
    assert [path.name for path in named.drafts] == ["eagle3-a.gguf"]


@pytest.mark.parametrize("how", [("head",), ("ann/Head-GGUF", "--name", "head")])
def test_a_head_is_added_to_the_pair_that_is_here(hub_world: World, how: tuple[str, ...]) -> None:
    hub_world.server.add("ann/Head-GGUF", hub_layouts.with_head())
    for arguments in (("ann/Head-GGUF",), (*how, "--draft", "auto,eagle3")):
        done = hub_world.run("pull", *arguments)
        assert "installed as head:" in done.out, done.err
    (pair,) = installed.all_pairs()
    assert [each.path.name for each in pair.drafts] == ["eagle3-a.gguf"]
    less = hub_world.run("pull", "ann/Head-GGUF", "--draft", "none", "--name", "head")
    assert "there is another pair named head" in less.err


def test_a_closed_standard_input_takes_no_head(
    hub_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("localspec.cli.models.pull.sys", SimpleNamespace(stdin=None))
    hub_world.server.add("ann/Head-GGUF", hub_layouts.with_head())
    done = hub_world.run("pull", "ann/Head-GGUF")
    assert "installed as head:" in done.out, done.err
    assert installed.all_pairs()[0].drafts == ()


def test_a_head_that_is_not_there_is_refused_by_name(hub_world: World) -> None:
    add_pair(hub_world)
    done = hub_world.run("pull", "ann/Pair-GGUF", "--draft", "dflash")
    assert done.code == 1
    assert "cannot draft for itself (dflash)" in done.err


def test_the_quant_is_chosen_by_name_or_for_this_machine(hub_world: World) -> None:
    sizes = {"Q2_K": 2, "Q4_K_M": 4, "Q6_K": 6, "Q8_0": 8, "BF16": 16}
    files = {f"a-{quant}.gguf": of(model(), size * 1_000_000) for quant, size in sizes.items()}
    hub_world.server.add("ann/Sizes-GGUF", files)
    plain = hub_world.run("pull", "ann/Sizes-GGUF", "--dry-run")
    assert "target      ann/Sizes-GGUF:a-Q4_K_M.gguf" in plain.out
    assert "file        Q8_0 (8 MB) suits this machine better" in plain.out
    for asked, name in {"best": "a-Q8_0.gguf", "q6_k": "a-Q6_K.gguf"}.items():
        done = hub_world.run("pull", "ann/Sizes-GGUF", "--quant", asked, "--dry-run")
        assert f"target      ann/Sizes-GGUF:{name}" in done.out
    wrong = hub_world.run("pull", "ann/Sizes-GGUF", "--quant", "Q3_K", "--dry-run")
    assert wrong.code == 1
    assert "has no quant Q3_K" in wrong.err


STEEP, FLAT = tuple(float(n) for n in (1, *range(1, 26))), (1.0,) * 26


@pytest.mark.parametrize(
    ("measured", "chosen"),
    [
        ({"Q8_0": STEEP, "Q6_K": FLAT}, "Q6_K"),
        ({"Q8_0": FLAT, "Q6_K": STEEP}, "Q8_0"),
        ({"Q6_K": FLAT}, "Q8_0"),  # nothing to compare with
        ({"Q8_0": STEEP, "Q4_K": FLAT, "Q2_K": FLAT}, "Q8_0"),  # faster, and not as good
    ],
)
def test_of_files_as_good_as_each_other_the_one_that_drafts_faster_here_suits(
    measured: dict[str, tuple[float, ...]],
    chosen: str,
    hub_world: World,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LOCALSPEC_CACHE", str(tmp_path / "cache"))
    for kind, times in measured.items():
        ranking.remember(kind, PairCosts(GB, times, bits=8.0, weight_type=kind), None, None)
    sizes = {"Q2_K": 2, "Q4_K_M": 4, "Q6_K": 6, "Q8_0": 7}
    files = {f"a-{quant}.gguf": of(model(), size * 1_000_000) for quant, size in sizes.items()}
    hub_world.server.add("ann/Sizes-GGUF", files)
    plain = hub_world.run("pull", "ann/Sizes-GGUF", "--dry-run").out
    assert f"file        {chosen} (" in plain
    assert ("of 4 files, it is about as good as Q8_0" in plain) == (chosen == "Q6_K")
    said = re.search(r"`localspec (pull ann/Sizes-GGUF:\S+)` takes it", plain)
    assert said is not None
    for asked in (said[1].split(), ["pull", "ann/Sizes-GGUF", "--quant", "best"]):
        best = hub_world.run(*asked, "--dry-run").out
        assert f"target      ann/Sizes-GGUF:a-{chosen}.gguf" in best
    shown = json.loads(hub_world.run("show", "ann/Sizes-GGUF", "--no-scan", "--json").out)
    assert shown["suited_file"]["quant"] == chosen


@pytest.mark.parametrize("how", ["curated", "installed"])
def test_of_a_repository_with_two_models_a_pair_s_own_takes_another_quant(
    hub_world: World, how: str
) -> None:
    target, name = catalogue.pairs()["qwen2.5-coder-32b"].target, "qwen2.5-coder-32b"
    sizes = {"q4_k_m": 4_000_000, "q8_0": 7_000_000}
    files = {target.file.replace("q4_k_m", each): of(model(), sizes[each])[:] for each in sizes}
    small = {each.replace("-32b-", "-1.5b-"): of(model(), 400_000)[:] for each in files}
    hub_world.server.add(target.repo, small | files)
    if how == "installed":
        name = "mine"
        asked = ("pull", f"{target.repo}:{target.file}", "--draft", "none", "--name", name)
        assert hub_world.run(*asked).code == 0
    for quant in ("Q8_0", "best"):
        asked = ("pull", name, "--draft", "none", "--quant", quant, "--dry-run")
        done = hub_world.run(*asked)
        assert "-32b-instruct-q8_0.gguf" in done.out.splitlines()[0], done.err
    wrong = hub_world.run("pull", name, "--quant", "Q6_K", "--dry-run")
    assert "has no quant Q6_K" in wrong.err


def test_below_six_bits_no_file_of_worse_quality_is_chosen_for_its_speed(
    hub_world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCALSPEC_CACHE", str(tmp_path / "cache"))
    for kind, times in {"Q4_K": STEEP, "Q4_0": FLAT, "IQ4_NL": FLAT}.items():
        ranking.remember(kind, PairCosts(GB, times, bits=4.5, weight_type=kind), None, None)
    sizes = {"Q4_0": 4, "IQ4_NL": 4, "Q4_K_M": 5}
    files = {f"a-{quant}.gguf": of(model(), size * 1_000_000) for quant, size in sizes.items()}
    hub_world.server.add("ann/Sizes-GGUF", files)
    best = hub_world.run("pull", "ann/Sizes-GGUF", "--quant", "best", "--dry-run").out
    assert "target      ann/Sizes-GGUF:a-Q4_K_M.gguf" in best


def test_no_file_below_four_bits_suits_a_machine_by_itself(
    hub_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for memory in ("total", "available"):
        monkeypatch.setattr(f"localspec.machine.{memory}", lambda: 10 * GB)
    sizes = {"Q2_K": 2, "Q4_K_M": 9, "Q8_0": 16}
    files = {f"a-{quant}.gguf": of(model(), size * GB) for quant, size in sizes.items()}
    hub_world.server.add("ann/Sizes-GGUF", files)
    done = hub_world.run("pull", "ann/Sizes-GGUF", "--dry-run")
    assert "target      ann/Sizes-GGUF:a-Q4_K_M.gguf" in done.out
    assert "file        " not in done.out
    refused = hub_world.run("pull", "ann/Sizes-GGUF", "--quant", "best", "--dry-run")
    assert refused.code == 1
    assert "with four bits or more leaves room for 16,384 tokens" in refused.err


def test_the_file_that_suits_a_machine_leaves_room_for_the_draft(
    hub_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for memory in ("total", "available"):
        monkeypatch.setattr(f"localspec.machine.{memory}", lambda: 285_000_000)
    sizes = {"Q4_K_M": 32_000_000, "Q8_0": 64_000_000}
    files = {f"a-{quant}.gguf": ggufs.model(n_bytes=size) for quant, size in sizes.items()}
    hub_world.server.add("ann/Sizes-GGUF", files)
    hub_world.server.add("ann/Small-GGUF", {"s-Q8_0.gguf": ggufs.model(n_bytes=22_400_000)})
    for draft, quant in {"none": "Q8_0", "ann/Small-GGUF": "Q4_K_M"}.items():
        asked = ("pull", "ann/Sizes-GGUF", "--draft", draft, "--dry-run")
        best = hub_world.run(*asked, "--quant", "best").out
        assert f"target      ann/Sizes-GGUF:a-{quant}.gguf" in best
        assert f"file        {quant} is the best of 2 files" in best


def test_a_card_that_was_seen_here_has_room_for_a_larger_file(
    hub_world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCALSPEC_CACHE", str(tmp_path / "cache"))
    for memory in ("total", "available"):
        monkeypatch.setattr(f"localspec.machine.{memory}", lambda: 10 * GB)
    sizes = {"Q4_K_M": 9, "Q8_0": 16}
    files = {f"a-{quant}.gguf": of(model(), size * GB) for quant, size in sizes.items()}
    hub_world.server.add("ann/Sizes-GGUF", files)
    asked = ("pull", "ann/Sizes-GGUF", "--quant", "best", "--dry-run")
    assert "leaves room for 16,384 tokens" in hub_world.run(*asked).err
    ranking.remember("it", PairCosts(GB, FLAT, on_device=True), 24 * GB, None)
    found = hub_world.run(*asked).out
    assert "target      ann/Sizes-GGUF:a-Q8_0.gguf" in found
    assert "of it on the GPU" in found
