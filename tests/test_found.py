"""Models of other programs: stores laid out as theirs are found, used by name and never changed."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
from huggingface_hub import constants

import localspec
from localspec.errors import ModelLoadError, NotOnHub
from localspec.loading.measurements import ranking
from localspec.loading.measurements.ranking import PairCosts, RankedPair
from localspec.pairs.disk import installed, other_programs
from localspec.pairs.disk.installed import InstalledModel, InstalledPair
from localspec.pairs.hub import pair_pull
from localspec.pairs.hub.pair_pull import PullRequest
from localspec.pairs.hub.retries import RetryPolicy
from localspec.pairs.names import resolver
from localspec.pairs.report.describe import candidate_lines
from localspec.pairs.report.examine import TOO_LARGE, DraftCandidate, examine
from tests.support import ggufs, toy
from tests.support.hub_world import World, world

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="HOME is not the home there"),
    pytest.mark.usefixtures("no_package"),  # its 49,000 tokens would be read again and again
]

LICENCE = ("general.license", ggufs.STRING, "mit")


@dataclass
class Stores:
    """A home with other programs' folders."""

    home: Path
    hub: Path

    def ollama(
        self, tag: str, data: bytes, quant: object = "Q4_K_M", *, layout: str = "gguf"
    ) -> Path:
        """Add HOST/NAMESPACE/MODEL:TAG as Ollama keeps it; give the model's blob."""
        folder = self.home / ".ollama" / "models"
        config = json.dumps({"model_format": layout, "file_type": quant}).encode()
        layers = [
            ("application/vnd.ollama.image.template", b"{{ .Prompt }}"),
            ("application/vnd.ollama.image.license", b"\n  Some Licence\nand so on"),
            ("application/vnd.ollama.image.model", data),
        ]
        manifest = {
            "schemaVersion": 2,
            "mediaType": "application/vnd.docker.distribution.manifest.v2+json",
            "config": self._layer(folder, "application/vnd.docker.container.image.v1+json", config),
            "layers": [self._layer(folder, kind, content) for kind, content in layers],
        }
        path = folder / "manifests" / Path(*tag.replace(":", "/").split("/"))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(manifest))
        return folder / "blobs" / f"sha256-{hashlib.sha256(data).hexdigest()}"

    def _layer(self, folder: Path, kind: str, data: bytes) -> dict[str, object]:
        digest = hashlib.sha256(data).hexdigest()
        blob = folder / "blobs" / f"sha256-{digest}"
        blob.parent.mkdir(parents=True, exist_ok=True)
        blob.write_bytes(data)
        return {"mediaType": kind, "digest": f"sha256:{digest}", "size": len(data)}

    def file(self, place: str, data: bytes) -> Path:
        path = self.home / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return path

    def cached(self, repo: str, name: str, data: bytes) -> Path:
        """Add a file as the Hub's library keeps it: a blob, and a link in a snapshot."""
        folder = self.hub / f"models--{repo.replace('/', '--')}"
        blob = folder / "blobs" / hashlib.sha256(data).hexdigest()
        pointer = folder / "snapshots" / ("a" * 40) / name
        for path in (blob, pointer):
            path.parent.mkdir(parents=True, exist_ok=True)
        blob.write_bytes(data)
        pointer.symlink_to(os.path.relpath(blob, pointer.parent))
        return pointer

    def contents(self) -> dict[str, tuple[bytes, int]]:
        """Everything in the home, with when it was written."""
        files = (path for path in self.home.rglob("*") if path.is_file())
        return {str(path): (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


@pytest.fixture
def stores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_package: None) -> Stores:
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("LOCALSPEC_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("LOCALSPEC_CACHE", str(tmp_path / "cache"))
    for name in ("OLLAMA_MODELS", "LLAMA_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    hub = home / ".cache" / "huggingface" / "hub"
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(hub))
    toy.install(tmp_path / "data")
    return Stores(home, hub)


@pytest.fixture
def hub_world(stores: Stores, tmp_path: Path) -> Iterator[World]:
    with world(tmp_path) as made, mock.patch.object(constants, "HF_HUB_CACHE", str(stores.hub)):
        yield made


def names() -> list[str]:
    return [model.name for model in other_programs.scan().models]


def test_every_store_is_found_with_name_quant_and_licence(stores: Stores) -> None:
    data = [ggufs.model(seed=seed) for seed in range(6)]
    blob = stores.ollama("registry.ollama.ai/library/llama3.2:1b", data[0], "Q8_0")
    studio = ".lmstudio/models/ann/Big-GGUF/Big-7B-Q4_K_M.gguf"
    stores.file(studio, ggufs.model(seed=1, extra=[LICENCE]))
    stores.file("elsewhere/ann/Far-GGUF/far-Q5_K_M.gguf", data[2])
    settings = json.dumps({"downloadsFolder": str(stores.home / "elsewhere"), "x": [1]})
    stores.file(".lmstudio/settings.json", settings.encode())
    stores.file(".cache/llama.cpp/ggml-org_tiny-GGUF_tiny-q8_0.gguf", data[3])
    stores.cached("bob/Cached-GGUF", "sub/cached-IQ4_XS.gguf", data[4])
    models = other_programs.scan()
    assert models.complete
    assert [(one.name, one.store, one.quant, one.licence) for one in models.models] == [
        ("llama3.2:1b", "Ollama", "Q8_0", "Some Licence"),
        ("Big-7B-Q4_K_M", "LM Studio", "Q4_K_M", "mit"),
        ("far-Q5_K_M", "LM Studio", "Q5_K_M", ""),
        ("ggml-org_tiny-GGUF_tiny-q8_0", "llama.cpp", "Q8_0", ""),
        ("cached-IQ4_XS", "Hub cache", "IQ4_XS", ""),
    ]
    assert models.models[0].path == blob
    assert models.models[0].n_bytes == len(data[0])


def test_folders_of_ones_own_are_honoured(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    stores.ollama("registry.ollama.ai/library/usual:latest", ggufs.model())
    other = Stores(stores.home / "other", stores.hub)
    other.ollama("registry.ollama.ai/library/moved:latest", ggufs.model(seed=1))
    monkeypatch.setenv("OLLAMA_MODELS", str(other.home / ".ollama" / "models"))
    stores.file("llama/m.gguf", ggufs.model(seed=2))
    monkeypatch.setenv("LLAMA_CACHE", str(stores.home / "llama"))
    assert names() == ["moved:latest", "m"]


def test_what_nobody_can_chat_with_is_passed_over(stores: Stores) -> None:
    stores.file(".lmstudio/models/a/b/good.gguf", ggufs.model())
    for name in ("mmproj-m.gguf", "mtp-m.gguf", "m-imatrix.gguf", "m-00002-of-00002.gguf"):
        stores.file(f".lmstudio/models/a/b/{name}", ggufs.model(seed=1))
    stores.file(".lmstudio/models/a/b/lone-00001-of-00002.gguf", ggufs.model(seed=2))
    stores.file(".lmstudio/models/a/b/text.gguf", b"no model at all")
    stores.file(".lmstudio/models/a/b/empty.gguf", b"")
    stores.file(".lmstudio/models/a/b/embed.gguf", ggufs.model(architecture="nomic-bert"))
    os.mkfifo(stores.home / ".lmstudio/models/a/b/pipe.gguf")
    (stores.home / ".lmstudio/models/a/b/gone.gguf").symlink_to("nowhere")
    (stores.home / ".lmstudio/models/a/loop").symlink_to(stores.home / ".lmstudio/models")
    (stores.home / ".lmstudio/models/a/b/folder.gguf").mkdir()
    stores.file(".lmstudio/settings.json", b'{"downloadsFolder": 7}')
    assert names() == ["good"]


def test_a_link_next_to_a_target_may_lead_nowhere(stores: Stores, hub_world: World) -> None:
    target = stores.file("models/own.gguf", ggufs.model())
    target.with_name("gone.gguf").symlink_to("nowhere")
    done = hub_world.run("show", str(target))
    assert done.code == 0, done.err
    assert "gone" not in done.out


def test_a_split_model_is_one_model(stores: Stores) -> None:
    parts = ggufs.split_model("Whole-Q4_K_M", 3)
    for name, data in parts.items():
        stores.file(f".lmstudio/models/a/b/{name}", data)
    (model,) = other_programs.scan().models
    assert (model.name, model.quant) == ("Whole-Q4_K_M", "Q4_K_M")
    assert model.n_bytes == sum(map(len, parts.values()))


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "null", "[]", '{"layers": 3}', '{"layers": [{"digest": 3}]}', "[" * 100_000),
        '{"layers": []}',
        '{"layers": [{"mediaType": "application/vnd.ollama.image.model", "digest": "../../x"}]}',
        '{"layers": [{"mediaType": "application/vnd.ollama.image.model",'
        ' "digest": "sha256:%s"}]}' % ("0" * 64),
        "x" * 2_000_000,
        "\udcff",
    ],
)
def test_damaged_manifests_and_missing_blobs_are_no_error(stores: Stores, text: str) -> None:
    stores.ollama("registry.ollama.ai/library/good:latest", ggufs.model())
    manifests = stores.home / ".ollama/models/manifests"
    for place in ("registry.ollama.ai/library/bad/latest", "stray", "a/b/c/d/e"):
        path = manifests / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode("utf-8", "surrogateescape"))
    assert names() == ["good:latest"]


def test_ollama_models_of_other_forms(stores: Stores) -> None:
    stores.ollama("registry.ollama.ai/library/mlx:latest", ggufs.model(), layout="safetensors")
    stores.ollama("registry.ollama.ai/library/odd:latest", ggufs.model(seed=1), quant=None)
    stores.ollama("hf.co/ann/Big-GGUF:Q8_0", ggufs.model(seed=2))
    models = other_programs.scan().models
    assert [(model.name, model.quant) for model in models] == [
        ("Big-GGUF:Q8_0", "Q4_K_M"),
        ("odd:latest", ""),
    ]


def test_a_name_stands_for_one_model(stores: Stores) -> None:
    for place, seed in (("a/x", 0), ("b/x", 1)):
        stores.file(f".lmstudio/models/{place}/same.gguf", ggufs.model(seed=seed))
    link = stores.home / ".lmstudio/models/c/x/other-name.gguf"
    link.parent.mkdir(parents=True)
    link.symlink_to(stores.home / ".lmstudio/models/a/x/same.gguf")
    for name in ("demo.gguf", "none.gguf", "qwen3-8b.gguf", "a b@c,d:e.gguf"):
        stores.file(f".lmstudio/models/d/x/{name}", ggufs.model(seed=len(name)))
    assert names() == ["same", "same-2", "a-b-c-d-e", "demo-2", "none-2", "qwen3-8b-2"]
    assert resolver.resolve("SAME-2").target.parent.parent.name == "b"


def test_models_of_installed_pairs_are_not_found_again(stores: Stores) -> None:
    path = stores.cached("ann/Big-GGUF", "big.gguf", ggufs.model())
    assert names() == ["big"]
    installed.save(InstalledPair("mine", InstalledModel((str(path),)), None))
    assert names() == []


def test_they_are_used_by_name_where_they_are(stores: Stores) -> None:
    blob = stores.ollama("registry.ollama.ai/library/big:latest", ggufs.model(n_bytes=64_000))
    draft = stores.file(".lmstudio/models/a/b/Small-Q8_0.gguf", ggufs.model(seed=1))
    for text in ("big:latest", "BIG:latest", "big"):
        pair = resolver.resolve(text, "small-q8_0")
        assert (pair.name, pair.target, pair.draft) == ("big:latest", blob, draft)
    assert resolver.resolve("big").draft is None
    blob.unlink()
    for text in ("big", "big:latest"):
        with pytest.raises(NotOnHub, match=f"no pair named {text}"):
            resolver.resolve(text)
    with pytest.raises(NotOnHub, match="no pair named") as caught:
        resolver.resolve("smal-q8_0")
    assert "Did you mean Small-Q8_0?" in caught.value.remedy


def slowed(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Let every look at a file take so long, by the search's clock."""
    now = count(0.0, seconds)
    clock = SimpleNamespace(monotonic=lambda: next(now))
    monkeypatch.setattr(other_programs, "time", clock)


def test_a_named_model_is_found_on_a_disk_that_has_to_wake_up(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = stores.file(".lmstudio/models/a/b/Small-Q8_0.gguf", ggufs.model())
    slowed(monkeypatch, 0.5)
    assert not other_programs.scan().complete
    assert resolver.resolve("small-q8_0").target == path
    slowed(monkeypatch, 5.0)
    with pytest.raises(NotOnHub, match="there is no pair named small-q8_0, and looking") as caught:
        resolver.resolve("small-q8_0")
    assert caught.value.remedy.startswith("Try again once the disk is awake, or name the model's")


def test_a_model_in_ollamas_own_layout_is_told(stores: Stores) -> None:
    stores.ollama("registry.ollama.ai/library/odd:latest", ggufs.model(architecture="gptoss"))
    with pytest.raises(ModelLoadError, match="gptoss") as caught:
        localspec.load("odd", ctx_size=64)
    assert "pull this one from the Hub" in caught.value.remedy


def test_without_a_scan_their_names_mean_nothing(stores: Stores) -> None:
    stores.ollama("registry.ollama.ai/library/big:latest", ggufs.model())
    for text in ("big:latest", "big"):
        with pytest.raises(NotOnHub, match="there is no pair named"):
            resolver.resolve(text, scan=False)
    with pytest.raises(NotOnHub):
        resolver.resolve("toy", "big", scan=False)


def test_other_names_are_resolved_without_looking(
    stores: Stores, toy_target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(other_programs, "scan", lambda: pytest.fail("it looked"))
    resolver.resolve("toy")
    resolver.resolve(str(toy_target), "none")
    for text in ("qwen3-8b", "user/repo:Q4_K_M", "hf.co/user/repo"):
        with pytest.raises(NotOnHub):
            resolver.resolve(text)


def test_they_are_matched_with_drafts_by_vocabulary(stores: Stores) -> None:
    stores.ollama("registry.ollama.ai/library/big:latest", ggufs.model(n_bytes=64_000))
    stores.file(".lmstudio/models/a/b/fits.gguf", ggufs.model(seed=1))
    odd = ggufs.model([f"x{number}" for number in range(300)], seed=2)
    stores.file(".lmstudio/models/a/b/odd.gguf", odd)
    with mock.patch.object(constants, "HF_HUB_OFFLINE", True):
        report = examine("big", None, RetryPolicy())
        unseen = examine(str(report.target.paths[0]), None, RetryPolicy(), scan=False)
    fits = {one.draft: one.fits for one in report.candidates if one.on_disk}
    assert fits == {"fits": True, "odd": False, "toy": False, str(toy.TARGET): False}
    assert {one.draft for one in unseen.candidates if one.on_disk} == {"toy", str(toy.TARGET)}


@pytest.mark.parametrize("draft", [None, "none"])
def test_further_drafts_are_tried_for_a_named_pair_but_not_its_own(
    stores: Stores, toy_draft: Path, draft: str | None
) -> None:
    stores.file(".lmstudio/models/a/b/another.gguf", toy_draft.read_bytes())
    with mock.patch.object(constants, "HF_HUB_OFFLINE", True):
        assert examine("toy", draft, RetryPolicy()).candidates == ()
        report = examine("toy", draft, RetryPolicy(), further=True)
    tried = {one.draft: one.fits for one in report.candidates if one.on_disk}
    assert tried == {"another": True} | ({} if draft is None else {"toy": True})


def test_whether_a_found_model_says_how_to_chat_is_shown(
    stores: Stores, hub_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    template = [("tokenizer.chat_template", ggufs.STRING, "{{ messages }}")]
    other = [("tokenizer.chat_template.tool_use", ggufs.STRING, "{{ messages }}")]
    for name, extra in (("chats", template), ("plain", []), ("tools", other)):
        data = ggufs.model(seed=len(extra) + len(name), extra=extra)
        stores.file(f".lmstudio/models/a/b/{name}-Q8_0.gguf", data)
    for step in (1 << 20, 64):  # the key may lie across two of them
        monkeypatch.setattr(other_programs, "_STEP", step)
        chats, *others = other_programs.rows(other_programs.scan().models)
        assert chats.notes == "Of LM Studio, Q8_0, with a chat template: used where it is."
        assert all("without a chat template" in other.notes for other in others)
    listed = json.loads(hub_world.run("list", "--json").out)["found"]
    assert {one["name"]: one["template"] for one in listed} == {
        "chats-Q8_0": True,
        "plain-Q8_0": False,
        "tools-Q8_0": False,
    }


def test_a_found_mixture_is_as_fast_as_the_experts_it_reads_and_then_as_measured(
    stores: Stores,
) -> None:
    n_bytes, place = 1 << 20, ".lmstudio/models/a/b"
    counts = [("qwen3moe.expert_count", ggufs.U32, 8), ("qwen3moe.expert_used_count", ggufs.U32, 2)]
    stores.file(
        f"{place}/experts.gguf",
        ggufs.model(
            n_bytes=n_bytes,
            architecture="qwen3moe",
            extra=counts,
            weights="blk.0.ffn_up_exps.weight",
        ),
    )
    stores.file(f"{place}/whole.gguf", ggufs.model(n_bytes=n_bytes, seed=1))
    other = PairCosts(10 * n_bytes, (0.1,) * 26, bits=8.5)

    def speeds() -> dict[str, RankedPair]:
        found_ones = other_programs.rows(other_programs.scan().models)
        return {one.row.name: one for one in ranking.ranked(found_ones, ranking.recall())}

    ranking.remember("other", other, None, None)
    assert speeds()["experts"].row.active == 0.25
    baseline = {name: one.baseline or 0.0 for name, one in speeds().items()}
    assert baseline["experts"] == pytest.approx(4 * baseline["whole"], rel=0.1)
    ranking.remember("experts", PairCosts(n_bytes, (0.02,) * 26), None, None)
    assert (speeds()["experts"].baseline, speeds()["experts"].measured) == (50, True)
    assert not speeds()["whole"].measured
    assert "to fetch" not in speeds()["experts"].offer


def test_drafts_of_the_catalogue_that_are_too_large_take_one_line() -> None:
    large = [DraftCandidate(f"u/r{n}", 9, on_disk=False, reason=TOO_LARGE) for n in range(12)]
    assert candidate_lines(tuple(large)) == ["no draft of the catalogue is small enough"]
    mine = DraftCandidate("mine", 9, on_disk=True, reason=TOO_LARGE)
    first, second = candidate_lines((mine, *large))
    assert first == f"no    --draft mine (9 bytes, on this disk): {TOO_LARGE}"
    assert second == "no other draft of the catalogue is small enough"


def test_of_many_drafts_the_rest_is_left_to_json() -> None:
    many = [DraftCandidate(f"d{n}", 9, on_disk=True, fits=True) for n in range(15)]
    assert candidate_lines(tuple(many))[12:] == [
        "and 3 more, which `localspec show` lists with --json"
    ]


def test_a_found_model_gets_a_pairs_name_by_a_pull_and_stays(stores: Stores) -> None:
    blob = stores.ollama("registry.ollama.ai/library/big:1b", ggufs.model())
    before = stores.contents()
    plan = pair_pull.plan(PullRequest("big:1b", "none"), RetryPolicy())
    record = pair_pull.execute(plan, RetryPolicy(), lambda _progress: None)
    assert (record.name, record.target.path) == ("big-1b", blob)
    assert stores.contents() == before


def test_list_shows_them_and_changes_nothing(stores: Stores, hub_world: World) -> None:
    stores.ollama("registry.ollama.ai/library/llama3.2:1b", ggufs.model())
    for number in range(45):
        name = f".lmstudio/models/a/b/m{number:02}-Q4_K_M.gguf"
        stores.file(name, ggufs.model(seed=number + 1))
    before = stores.contents()
    shown = hub_world.run("list")
    assert shown.code == 0
    assert "llama3.2:1b" in shown.out
    assert "and 6 more" in shown.out
    data = json.loads(hub_world.run("list", "--json").out)
    assert len(data["found"]) == 46
    assert data["found"][0] == {
        "name": "llama3.2:1b",
        "store": "Ollama",
        "path": data["found"][0]["path"],
        "quant": "Q4_K_M",
        "licence": "Some Licence",
        "bytes": len(ggufs.model()),
        "template": False,
    }
    assert json.loads(hub_world.run("list", "--json", "--no-scan").out)["found"] == []
    assert "Ollama" not in hub_world.run("list", "--no-scan").out
    assert hub_world.run("show", "llama3.2:1b", "--draft", "none").code == 0
    assert "there is no pair" in hub_world.run("show", "m01-Q4_K_M", "--no-scan").err
    assert stores.contents() == before


def test_a_setting_stops_the_looking(
    stores: Stores, hub_world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores.ollama("registry.ollama.ai/library/big:latest", ggufs.model())
    (tmp_path / "settings.toml").write_text("scan = false\n")
    monkeypatch.setenv("LOCALSPEC_CONFIG", str(tmp_path))
    assert json.loads(hub_world.run("list", "--json").out)["found"] == []
    assert json.loads(hub_world.run("list", "--json", "--scan").out)["found"]
    assert hub_world.run("list").err == ""


@pytest.mark.slow
def test_run_answers_with_ollamas_model_where_it_is(
    stores: Stores, hub_world: World, toy_target: Path, toy_draft: Path
) -> None:
    blob = stores.ollama("registry.ollama.ai/library/tiny:latest", toy_target.read_bytes() + b"\0")
    draft = stores.home / ".lmstudio/models/a/b/tiny-draft.gguf"
    draft.parent.mkdir(parents=True)
    shutil.copyfile(toy_draft, draft)
    before = stores.contents()
    options = ("--draft", "tiny-draft", "-n", "8", "--temp", "0", "--gamma", "2", "--json")
    done = hub_world.run_outside(
        "run", "tiny", "-p", "Tell me a story.", *options, HOME=str(stores.home)
    )
    assert done.code == 0, done.err
    answer = json.loads(done.out)
    assert answer["generated_tokens"] > 1
    assert answer["drafted_tokens"] > 0
    after = stores.contents()
    assert {path: after[path] for path in before} == before
    assert str(blob) in before


@pytest.mark.timed
def test_ten_thousand_files_cost_at_most_a_second(stores: Stores) -> None:
    stores.ollama("registry.ollama.ai/library/good:latest", ggufs.model())
    folder = stores.home / ".lmstudio/models/a/b"
    folder.mkdir(parents=True)
    for number in range(5000):
        (folder / f"m{number}.gguf").write_bytes(b"GGUF or something else")
        (folder / f"note-{number}.txt").write_bytes(b"")
    started = time.perf_counter()
    models = other_programs.scan()
    assert time.perf_counter() - started < 1
    assert models.models[0].name == "good:latest"
    assert not other_programs.scan(within_s=0).complete
