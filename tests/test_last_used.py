"""`localspec chat` without a name: the pair used last, else the starter."""

from __future__ import annotations

import os
import sys
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from localspec.engine.cancel import Cancel
from localspec.errors import ModelFileError, UsageError
from localspec.loading.load import open_session
from localspec.loading.load_request import LoadRequest
from localspec.pairs.disk import remove
from localspec.pairs.disk.installed import (
    InstalledModel,
    InstalledPair,
    LastUsed,
    recall_last,
    remember_last,
    save,
)
from localspec.pairs.hub.retries import RetryPolicy
from localspec.process.messages import SessionInfo


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "data"
    monkeypatch.setenv("LOCALSPEC_DATA", str(folder))
    return folder


def opened(**given: object) -> tuple[str, str | None, list[str]]:
    """The pair's name, the draft's file and the notices of what is opened."""
    options = LoadRequest(ctx_size=64, threads=1, gamma=0, **given)  # type: ignore[arg-type]
    session = open_session(options, lambda _step, _share: None, Cancel())
    try:
        draft = session.pair.draft
        return session.pair_name, draft.model.path.name if draft else None, session.notices
    finally:
        session.close()


def test_the_pair_that_was_named_is_opened_again(toy_target: Path, toy_draft: Path) -> None:
    name, draft, _ = opened(pair=str(toy_target), draft=str(toy_draft))
    assert opened() == (name, draft, [])
    assert (name, draft) == (toy_target.stem, toy_draft.name)
    assert opened(draft="none")[:2] == (name, None)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems refuse such names")
def test_a_pair_is_opened_in_a_folder_whose_name_is_not_utf8_and_not_kept(
    toy_target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    folder.mkdir()
    (folder / "it.gguf").symlink_to(toy_target)
    remember_last("before")
    monkeypatch.chdir(folder)
    request = LoadRequest(pair="./it.gguf", draft="none", ctx_size=64, threads=1)
    with closing(open_session(request, lambda *_: None, Cancel())) as session:
        info = msgspec.convert(session, SessionInfo, from_attributes=True)
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(info), type=SessionInfo) == info
        assert info.pair_reference == ("./it.gguf", "none")
    assert recall_last() == LastUsed("before")


@pytest.mark.slow
def test_without_a_past_it_is_the_starter_and_nothing_is_kept(
    starter_file: Path, data: Path
) -> None:
    assert opened()[0] == "starter"
    assert not data.exists()


@pytest.mark.slow
def test_a_pair_that_is_gone_is_named_in_one_line(
    starter_file: Path, toy_target: Path, tmp_path: Path
) -> None:
    gone = tmp_path / "gone.gguf"
    gone.symlink_to(toy_target)
    assert opened(pair=str(gone))[0] == "gone"
    gone.unlink()
    name, _, notices = opened()
    assert name == "starter"
    (said,) = (notice for notice in notices if str(gone) in notice)  # it may be converted, too
    assert "does not exist" in said
    assert "\n" not in said
    gone.symlink_to(toy_target)
    assert opened()[0] == "gone"  # a pair whose file may come back is not forgotten


def test_what_cannot_be_opened_is_not_remembered(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError):
        opened(pair=str(tmp_path / "never.gguf"))
    assert recall_last() is None


def test_wrong_settings_are_not_blamed_on_the_pair(toy_target: Path) -> None:
    remember_last(str(toy_target))
    with pytest.raises(UsageError):
        opened(temp=-1.0)


def test_a_path_means_the_same_in_another_folder(
    toy_target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(toy_target.parent)
    remember_last(f"./{toy_target.name}", toy_target.name)
    assert recall_last() == LastUsed(str(toy_target), str(toy_target))


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", '{"format": 9, "pair": "x", "draft": null}',
     '{"format": 1, "pair": 3, "draft": null}', '{"format": 1, "pair": " ", "draft": null}'],
)  # fmt: skip
def test_a_damaged_record_is_as_good_as_none(data: Path, text: str) -> None:
    data.mkdir()
    (data / "last-pair.json").write_text(text)
    assert recall_last() is None
    remember_last("mine")
    assert recall_last() == LastUsed("mine")
    assert [path.name for path in data.iterdir()] == ["last-pair.json"]


def test_a_record_that_is_no_text_is_as_good_as_none(data: Path) -> None:
    data.mkdir()
    (data / "last-pair.json").write_bytes(b'{"format": 1, "pair": "caf\xe9", "draft": null}')
    assert recall_last() is None


def test_a_folder_that_cannot_be_written_does_no_harm(data: Path) -> None:
    data.write_text("a file where the folder should be")
    remember_last("mine")
    assert recall_last() is None


def test_a_removed_pair_is_forgotten(toy_target: Path) -> None:
    save(InstalledPair("mine", InstalledModel((str(toy_target),)), None))
    remember_last("Mine")
    remove.remove("mine", RetryPolicy())
    assert recall_last() is None
    assert toy_target.exists()
