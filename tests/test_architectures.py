"""Every architecture of which llama.cpp's source says that it drafts, or shows what heads read."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from localspec.chat.events import RoundText
from localspec.engine.cancel import Cancel
from localspec.engine.llama.heads import head
from localspec.loading.load import load_session
from localspec.loading.load_request import LoadRequest
from localspec.pairs.gguf import head_checks
from localspec.pairs.gguf.header import read_header
from tests.support import llama_archs
from tests.support.any_model import WIDTH, write_any
from tests.support.gguf_models import Sizes
from tests.support.heads import Eagle, split_mtp, write_eagle3


@pytest.fixture(autouse=True)
def source() -> None:
    llama_archs.needed()


def test_the_architectures_that_draft_by_mtp_are_those_of_the_source() -> None:
    found = llama_archs.predicting()
    assert len(found) > 10
    assert found.keys() == head_checks._MTP.keys()
    assert {name for name, alone in found.items() if alone} == {*head._WANTED_ROWS}
    assert llama_archs.several_layers() == {*head_checks._CHAINS}


def test_the_architectures_that_heads_can_read_are_those_of_the_source() -> None:
    assert llama_archs.showing() == {*head_checks.TAPPED}


def texts(target: Path, draft: str) -> tuple[list[list[int]], int]:
    """What is answered without drafting and with it, and how many tokens were drafted."""
    said, drafted = [], 0
    for gamma in (0, 3):
        request = LoadRequest(
            pair=str(target),
            draft=draft,
            ctx_size=256,
            threads=1,
            flash_attn="on",  # otherwise both ways are timed
            temp=0.0,
            seed=1,
            gamma=gamma,
            n_predict=24,
            scan=False,
            past=False,
        )
        with closing(load_session(request, progress=lambda *_: None, cancel=Cancel())) as session:
            assert session.pair.drafts, session.pair.draft_note
            events = session.turn("Tell me a story.", Cancel())
            rounds = [each.round for each in events if isinstance(each, RoundText)]
        said.append([token for each in rounds for token in each.tokens])
        drafted = sum(each.drafted for each in rounds)
    return said, drafted


@pytest.mark.slow
@pytest.mark.parametrize("architecture", sorted(head_checks._MTP))
def test_a_model_that_predicts_more_tokens_drafts_its_own_text(
    architecture: str, tmp_path: Path
) -> None:
    target = write_any(tmp_path / "it.gguf", architecture, nextn=1)
    assert head_checks.has_usable_mtp(read_header(target))
    (plain, drafting), drafted = texts(target, "mtp")
    assert drafted > 0
    assert plain == drafting
    assert len(plain) == 24
    trunk, alone = tmp_path / "trunk.gguf", tmp_path / "head.gguf"
    split_mtp(target, trunk, alone)
    (plain, drafting), drafted = texts(trunk, str(alone))
    assert drafted > 0
    assert plain == drafting


@pytest.mark.slow
@pytest.mark.parametrize("architecture", sorted(head_checks.TAPPED))
def test_a_head_next_to_a_model_drafts_its_text(architecture: str, tmp_path: Path) -> None:
    target = write_any(tmp_path / "it.gguf", architecture)
    sizes = Sizes(n_layer=1, n_embd=WIDTH, n_head=2, n_head_kv=2, n_ff=64, n_ctx=1024)
    eagle = Eagle(taps=(0, 1, 2), reads=WIDTH, sizes=sizes)
    beside = write_eagle3(tmp_path / "head.gguf", eagle)
    (plain, drafting), drafted = texts(target, str(beside))
    assert drafted > 0
    assert plain == drafting
    assert len(plain) == 24
