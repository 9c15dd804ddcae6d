"""What can go wrong between us and the Hub: one line each, exit code 1, no traceback."""

from __future__ import annotations

from pathlib import Path

import pytest
from huggingface_hub import constants

from localspec.errors import AccessDenied, HubOffline, HubUnavailable, NotOnHub
from localspec.pairs.gguf import header as gguf
from localspec.pairs.hub import cache
from localspec.pairs.hub import client as hub
from localspec.pairs.hub.client import RemoteFile
from localspec.pairs.hub.retries import RetryPolicy
from localspec.pairs.memory.model_facts import active_share, facts
from localspec.pairs.names import references
from localspec.pairs.report import model_source
from tests.support import ggufs, toy
from tests.support.hub_server import Hollow
from tests.support.hub_world import World

# Else whatever looks for drafts would read the starter's 49,000 tokens.
pytestmark = pytest.mark.usefixtures("no_package")

QUICK = RetryPolicy(pauses=(0.0, 0.0))
ONE = references.parse("ann/One-GGUF")


@pytest.fixture
def one(hub_world: World) -> RemoteFile:
    repo = hub_world.server.add("ann/One-GGUF", {"one-Q8_0.gguf": ggufs.model(n_bytes=800_000)})
    name = "one-Q8_0.gguf"
    return RemoteFile(repo.name, repo.commit, name, repo.size(name), repo.etag(name))


def check_failure(world_: World, reference: str, *wanted: str) -> None:
    """A pull of `reference` ends in one line, a remedy, and exit code 1."""
    done = world_.run("pull", reference, "--draft", "none")
    assert done.code == 1
    lines = [line for line in done.err.splitlines() if not line.startswith("looking at")]
    assert lines[0].startswith("error: ")
    assert len(lines) == 2
    assert lines[1].startswith("  ")
    for word in wanted:
        assert word in done.err
    assert "Traceback" not in done.err + done.out


def test_a_repository_is_described(hub_world: World, one: RemoteFile) -> None:
    repo = hub.look_up(ONE, QUICK)
    assert repo.commit == one.commit
    assert repo.licence == "apache-2.0"
    assert not repo.gated
    assert repo.files == {one.name: one}


def test_a_header_is_read_without_the_weights(hub_world: World, one: RemoteFile) -> None:
    source = model_source.from_hub(ONE, QUICK)
    assert source.header.architecture == "llama"
    assert len(source.header.tokens or ()) == 300
    assert source.missing == one.size
    assert hub_world.server.sent() == 256 * 1024
    assert not hub_world.cache.exists()


def test_a_range_is_what_was_asked_for(hub_world: World, one: RemoteFile) -> None:
    content = hub_world.server.repos[one.repo].files[one.name]
    assert isinstance(content, bytes)
    assert hub.read_range(one, 1000, 500, QUICK) == content[1000:1500]
    assert hub.read_range(one, one.size - 5, 500, QUICK) == content[-5:]
    hub_world.server.fault("/cdn/", ignore_range=True)
    assert hub.read_range(one, 1000, 500, QUICK) == content[1000:1500]


def test_missing_things_are_named(hub_world: World, one: RemoteFile) -> None:
    check_failure(hub_world, "ann/Nothing", "there is no repository ann/Nothing, or it is private")
    check_failure(hub_world, "ann/One-GGUF@v9", "no revision v9")
    check_failure(hub_world, "ann/One-GGUF:two.gguf", "no file two.gguf", "It has: Q8_0.")
    check_failure(hub_world, "ann/One-GGUF:Q2_K", "no quant Q2_K", "It has: Q8_0.")
    hub_world.server.add("ann/Empty", {"README.md": b"hello", "model.safetensors": b"x"})
    check_failure(hub_world, "ann/Empty", "holds no GGUF model")
    hub_world.server.add("ann/Vision", {"mmproj-F16.gguf": b"x"})
    check_failure(hub_world, "ann/Vision", "holds no GGUF model")


def test_a_part_that_is_missing_is_named(hub_world: World) -> None:
    files = ggufs.split_model("deep", 3)
    del files["deep-00002-of-00003.gguf"]
    hub_world.server.add("ann/Deep", dict(files))
    check_failure(hub_world, "ann/Deep", "lacks deep-00002-of-00003.gguf")


def test_experts_of_later_parts_are_known_before_they_are_fetched(hub_world: World) -> None:
    keys = {"block_count": 1, "embedding_length": 64, "attention.head_count": 4}
    keys |= {"expert_count": 8, "expert_used_count": 2}
    own = [(f"qwen3moe.{key}", ggufs.U32, value) for key, value in keys.items()]
    whole = [
        ("general.architecture", ggufs.STRING, "qwen3moe"),
        ("tokenizer.ggml.model", ggufs.STRING, "gpt2"),
        ("tokenizer.ggml.tokens", ggufs.ARRAY, (ggufs.STRING, ggufs.words(300))),
        *own,
        ("split.count", ggufs.U16, 3),
    ]
    experts = ggufs.tensor("blk.0.ffn_up_exps.weight", [1 << 20], 0, 0)
    output = ggufs.tensor("output.weight", [1 << 18], 0, 0)
    parts = (ggufs.header(whole), *(ggufs.header([], [each]) for each in (experts, output)))
    sizes = (0, 1 << 22, 1 << 20)  # as `split --no-tensor-first-split` makes them
    files = {
        f"m-{at:05}-of-00003.gguf": Hollow(part, len(part) + size)
        for at, (part, size) in enumerate(zip(parts, sizes, strict=True), 1)
    }
    hub_world.server.add("ann/Mixture", files)
    found = model_source.from_hub(references.parse("ann/Mixture"), QUICK, target=True)
    known = facts(found.header)
    assert active_share(found.header) == pytest.approx(0.2 + 0.8 * 2 / 8)
    assert (known.experts, known.largest_matrix) == ((1 << 22,), 1 << 22)
    assert known.output_weights == 1 << 20
    assert found.missing == found.n_bytes


def test_a_renamed_repository_is_not_followed(hub_world: World, one: RemoteFile) -> None:
    hub_world.server.add("ann/Old", {}, moved_to="ann/One-GGUF")
    check_failure(hub_world, "ann/Old:Q8_0", "has moved to ann/One-GGUF", "ann/One-GGUF:Q8_0")


def test_a_gated_repository_says_where_to_accept(hub_world: World, one: RemoteFile) -> None:
    hub_world.server.repos[one.repo].gated = "manual"
    # `hf` itself may lie where no shell looks.
    check_failure(hub_world, str(ONE), "is gated", "/ann/One-GGUF", "HF_TOKEN", "python")
    check_failure(hub_world, str(ONE), "-m huggingface_hub.cli.hf auth login")


def test_a_gated_repository_stays_shut_until_access_is_granted(
    hub_world: World, one: RemoteFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    repo = hub_world.server.repos[one.repo]
    repo.gated, repo.granted = "manual", False
    monkeypatch.setenv("HF_TOKEN", hub_world.server.token)
    check_failure(hub_world, str(ONE), "is gated", "/ann/One-GGUF")


def test_a_gated_repository_opens_with_a_token(
    hub_world: World, one: RemoteFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub_world.server.repos[one.repo].gated = "auto"
    monkeypatch.setenv("HF_TOKEN", hub_world.server.token)
    done = hub_world.run("pull", str(ONE), "--draft", "none")
    assert done.code == 0, done.err
    assert "gated: ann/One-GGUF" in done.out
    assert {seen.authorization for seen in hub_world.server.bodies()} == {""}


def test_a_private_repository_looks_missing(hub_world: World, one: RemoteFile) -> None:
    hub_world.server.repos[one.repo].private = True
    check_failure(hub_world, str(ONE), "or it is private", "HF_TOKEN")


def test_a_bad_token_is_named(
    hub_world: World, one: RemoteFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    check_failure(hub_world, str(ONE), "refuses this access token", "unset HF_TOKEN")
    monkeypatch.setenv("HF_TOKEN", "hf_wr\u00f6ng\u2028")
    done = hub_world.run("pull", str(ONE), "--draft", "none")
    assert done.code == 1
    assert "Traceback" not in done.err


def test_a_refusal_without_a_token_blames_none(hub_world: World, one: RemoteFile) -> None:
    hub_world.server.fault("/cdn/", status=403, times=9)
    check_failure(hub_world, str(ONE), f"access to {one.repo} is refused (status 403)", "firewall")


@pytest.mark.parametrize(
    ("variable", "named"),
    [
        ("HF_HUB_OFFLINE", "HF_HUB_OFFLINE"),
        ("TRANSFORMERS_OFFLINE", "TRANSFORMERS_OFFLINE"),
        ("OF_NO_MEANING", "HF_HUB_OFFLINE"),
    ],
)
def test_offline_mode_is_named(
    hub_world: World, one: RemoteFile, monkeypatch: pytest.MonkeyPatch, variable: str, named: str
) -> None:
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, "1")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    check_failure(hub_world, str(ONE), "offline mode is on", f"Unset {named}.")
    assert hub_world.server.seen == []


def test_a_dead_hub_is_named_and_the_cache_still_works(
    hub_world: World, one: RemoteFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert hub_world.run("pull", str(ONE), "--draft", "none").code == 0
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:1")
    check_failure(hub_world, "ann/Other", "cannot be reached", "network")
    done = hub_world.run("pull", f"{ONE}:Q8_0", "--draft", "none", "--name", "again")
    assert done.code == 0, done.err
    assert "nothing is to be fetched" in done.out


@pytest.mark.parametrize(
    "text", ["ann/One:", "a/b/c", "ann/../x", "ann/One@", "://", "https://example.com/a/b", "a b/c"]
)
def test_bad_references_are_named(hub_world: World, text: str) -> None:
    check_failure(hub_world, text)
    assert hub_world.server.seen == []


def test_an_unknown_name_gets_a_suggestion(hub_world: World) -> None:
    check_failure(hub_world, "qwen3-8", "no pair named qwen3-8", "Did you mean qwen3-8b?")


def test_a_server_that_is_no_hub_is_named(hub_world: World, one: RemoteFile) -> None:
    for body in (b"<html>hello</html>", b"[]", b"{}", b'{"id": 3}', b"null"):
        hub_world.server.fault("/api/", status=200, body=body)
        with pytest.raises(HubUnavailable) as caught:
            hub.look_up(ONE, QUICK)
        assert "HF_ENDPOINT" in caught.value.remedy


@pytest.mark.parametrize("status", [429, 500, 502, 503])
def test_a_busy_hub_is_asked_again(hub_world: World, one: RemoteFile, status: int) -> None:
    hub_world.server.fault("/api/", status=status, times=2)
    assert hub.look_up(ONE, QUICK).commit == one.commit
    hub_world.server.fault("/api/", status=status, times=3)
    with pytest.raises(HubUnavailable) as caught:
        hub.look_up(ONE, QUICK)
    assert str(status) in caught.value.message


@pytest.mark.parametrize("status", [400, 403, 404, 410, 418, 451])
def test_other_answers_are_final(hub_world: World, one: RemoteFile, status: int) -> None:
    hub_world.server.fault("/api/", status=status, times=9)
    with pytest.raises((HubUnavailable, AccessDenied, NotOnHub)):
        hub.look_up(ONE, QUICK)
    assert len(hub_world.server.seen) == 1


def test_a_silent_hub_is_given_up(
    hub_world: World, one: RemoteFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", 0.1)
    fault = hub_world.server.fault("/cdn/", hold_after=10, times=9)
    with pytest.raises(HubUnavailable) as caught:
        hub.read_range(one, 0, 1000, QUICK)
    fault.release.set()
    assert "did not answer in time" in caught.value.message


def test_an_incompatible_pair_is_refused_before_any_weight_moves(hub_world: World) -> None:
    server = hub_world.server
    server.add("ann/T-GGUF", {"t-Q8_0.gguf": ggufs.model(n_bytes=800_000)})
    odd = ggufs.words(300)
    odd[123] = "bank\u00e9"
    server.add("ann/D-GGUF", {"d-Q8_0.gguf": ggufs.model(odd, n_bytes=400_000)})
    done = hub_world.run("pull", "ann/T-GGUF", "--draft", "ann/D-GGUF")
    assert done.code == 1
    assert "token 123 is 'bank\u00e9', in the target 'word123'" in done.err
    assert all(seen.range for seen in server.bodies())
    assert server.sent() <= 2 * 256 * 1024
    assert hub_world.blobs("ann/T-GGUF") == {}


@pytest.mark.parametrize(
    ("content", "wanted"),
    [
        (b"", "an empty file"),
        (b"version https://git-lfs.github.com/spec/v1\n", "a Git LFS pointer"),
        (b"../../../etc/passwd", "plain text"),
        (b"GGUF" + bytes(100), "version 0"),
        (ggufs.model()[:-100], "cut off"),
        (ggufs.model(extra=[("general.type", ggufs.STRING, "adapter")]), "a part of a model"),
        (ggufs.model(architecture="eagle3"), "eagle3 head"),
        (ggufs.model(architecture="clip"), "a part of a model"),
    ],
)
def test_files_that_are_no_models_are_refused_early(
    hub_world: World, content: bytes, wanted: str
) -> None:
    hub_world.server.add("ann/Bad", {"bad.gguf": content})
    check_failure(hub_world, "ann/Bad", wanted)
    assert hub_world.blobs("ann/Bad") == {}


def test_hostile_words_do_not_reach_the_terminal(hub_world: World) -> None:
    bad = "evil\x1b[2J\nerror: all is lost"
    content = ggufs.model(architecture=bad, extra=[("general.license", ggufs.STRING, bad)])
    hub_world.server.add("ann/Bad", {"bad.gguf": content}, licence=bad)
    done = hub_world.run("pull", "ann/Bad", "--draft", "none", "--dry-run")
    assert done.code == 0, done.err
    assert "\x1b" not in done.out
    assert "\nerror" not in done.out
    hub_world.server.add("ann/Moved", {}, moved_to="ann/Bad")
    hub_world.server.repos["ann/Bad"].name = bad
    done = hub_world.run("pull", "ann/Moved")
    assert done.code == 1
    assert "\x1b" not in done.err


@pytest.mark.parametrize(
    "key",
    [
        "general.architecture",
        *(
            pytest.param(key, marks=pytest.mark.slow)
            for key in (
                *("general.type", "general.license"),
                *("tokenizer.ggml.pre", "tokenizer.ggml.model"),
            )
        ),
    ],
)
def test_hostile_words_of_a_file_do_not_reach_the_terminal(
    hub_world: World, tmp_path: Path, key: str
) -> None:
    bad = "evil\x1b]0;title\x07\x9b2J\nerror: all is lost" + "x" * 5000
    settings = {"general.architecture": "architecture", "tokenizer.ggml.model": "tokenizer"}
    if key in settings:
        content = ggufs.model(**{settings[key]: bad})
    else:
        content = ggufs.model(extra=[(key, ggufs.STRING, bad)])
    path = tmp_path / "evil.gguf"
    path.write_bytes(content)
    for words in (
        ("show", str(path)),
        ("pull", str(path), "--draft", "none", "--name", "evil"),
        ("list",),
        ("run", str(path), "hello"),
        ("show", str(toy.TARGET), "--draft", str(path)),
    ):
        done = hub_world.run(*words)
        said = done.out + done.err
        assert not {"\x1b", "\x07", "\x9b"} & set(said), words
        assert "\nerror: all" not in said
        assert max(len(line) for line in said.splitlines()) < 1000


def test_drafts_are_rejected_as_soon_as_they_cannot_fit(hub_world: World) -> None:
    wide = [f"{number:04}" + "x" * 2000 for number in range(300)]
    hub_world.server.add("ann/Wide", {"wide.gguf": ggufs.model(wide, tokenizer="llama")})
    target = gguf.parse_header(lambda at, size: ggufs.model()[at : at + size], None, "target")
    with pytest.raises(Exception, match="type SPM"):
        model_source.from_hub(references.parse("ann/Wide"), QUICK, like=target)
    assert hub_world.server.sent() == 256 * 1024


def test_show_reads_headers_only(hub_world: World, one: RemoteFile) -> None:
    done = hub_world.run("show", str(ONE), "--draft", str(ONE), "--json")
    assert done.code == 0, done.err
    assert '"compatible": true' in done.out
    assert hub_world.blobs(one.repo) == {}


def test_offline_errors_are_offline_errors(
    hub_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:1")
    with pytest.raises(HubOffline):
        hub.look_up(ONE, QUICK)


def test_a_file_that_another_snapshot_uses_is_copied_where_there_are_no_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_SYMLINKS", True)
    blob, pointer = tmp_path / "blob", tmp_path / "file.gguf"
    blob.write_bytes(b"weights")
    cache._link(pointer, blob, alone=False)
    assert blob.read_bytes() == pointer.read_bytes() == b"weights"
    cache._link(pointer, blob, alone=True)
    assert not blob.exists()


def test_a_proxy_that_cannot_be_used_is_told() -> None:
    with pytest.raises(HubUnavailable, match="socksio"), hub.translated(references.parse("ann/a")):
        raise ImportError("the 'socksio' package is not installed")
