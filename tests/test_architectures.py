"""Every architecture that drafts or supplies the inputs of heads, by llama.cpp's source."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from localspec.chat.events import RoundText
from localspec.drafter_names import ASSISTANT
from localspec.engine.cancel import Cancel
from localspec.engine.llama import Context
from localspec.engine.llama.heads import head
from localspec.errors import UnsupportedModel
from localspec.loading.load import load_session
from localspec.loading.load_request import LoadRequest
from localspec.pairs.gguf import head_checks, usable
from localspec.pairs.gguf.header import read_header
from tests.fakes import tokens_of
from tests.support import llama_archs
from tests.support.any_model import WIDTH, write_any
from tests.support.gguf_models import Sizes
from tests.support.heads import Eagle, split_mtp, write_eagle3

SIZES = Sizes(n_layer=1, n_embd=WIDTH, n_head=2, n_head_kv=2, n_ff=64, n_ctx=1024)
TIE = 0.002  # logits of a random model, whose best one leads by 0.4 in the median
EAGLE = Eagle(taps=(0, 1, 2), reads=WIDTH, sizes=SIZES)


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
    assert llama_archs.showing() == {*head_checks.TAPPED, "qwen4exp"}


def test_the_architectures_that_read_which_layers_slide_are_those_of_the_source() -> None:
    """Exaone4's window depends on its size, dots3note may do without, two others write no text."""
    others = {"exaone4", "dots3note", ASSISTANT, "gemma-embedding", "modern-bert"}
    assert llama_archs.patterned() == usable._SLIDING | usable._MAY_SLIDE | others


@pytest.mark.slow
def test_an_architecture_with_wider_rows_is_refused(tmp_path: Path) -> None:
    """llama.cpp would end the process over such rows (`extract_layer_inputs`)."""
    target, beside = write_any(tmp_path / "it.gguf", "qwen4exp"), tmp_path / "head.gguf"
    with pytest.raises(UnsupportedModel, match="shows no layers of qwen4exp"):
        answered(target, str(write_eagle3(beside, EAGLE)), 0)


def drafted_losslessly(target: Path, draft: str) -> None:
    """Check that tokens were drafted and the greedy answer is the same, except after a near tie."""
    baseline, gaps, drafted = answered(target, draft, 0)
    drafting, _, drafted = answered(target, draft, 3)
    assert drafted > len(drafting) / 2
    assert len(baseline) > 8
    alike = [one == other for one, other in zip(baseline, drafting, strict=False)]
    parts = None if all(alike) else alike.index(False)
    if parts is None:
        assert baseline == drafting
    else:
        assert gaps[parts] < TIE


def answered(target: Path, draft: str, gamma: int) -> tuple[list[int], list[float], int]:
    """An answer, the lead of each token's logit over the next, and the number of drafted tokens.

    The logits are those of passes over one token, and of the answer without drafting alone.
    """
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
        tokens = tokens_of(rounds)
        gaps = [] if gamma else leads(session.pair.target, tokens)
    return tokens, gaps, sum(each.drafted for each in rounds)


def leads(target: Context, tokens: list[int]) -> list[float]:
    """The lead of the best logit over the second best one, at each token of an answer."""
    known = list(target.tokens)
    start = next(n for n in range(len(known)) if known[n : n + 4] == tokens[:4])
    target.show(())
    target.clear()
    logits, found = target.decode(known[:start], 1)[0], []
    for token in tokens:
        second, best = np.sort(logits)[-2:]
        found.append(float(best - second))
        logits = target.decode([token], 1)[0]
    return found


@pytest.mark.slow
@pytest.mark.parametrize("architecture", sorted(head_checks._MTP))
def test_a_model_that_predicts_more_tokens_drafts_its_own_text(
    architecture: str, tmp_path: Path
) -> None:
    target = write_any(tmp_path / "it.gguf", architecture, nextn=1)
    assert head_checks.has_usable_mtp(read_header(target))
    drafted_losslessly(target, "mtp")
    trunk, alone = tmp_path / "trunk.gguf", tmp_path / "head.gguf"
    split_mtp(target, trunk, alone)
    drafted_losslessly(trunk, str(alone))


@pytest.mark.slow
@pytest.mark.parametrize("architecture", sorted(head_checks.TAPPED))
def test_a_head_next_to_a_model_drafts_its_text(architecture: str, tmp_path: Path) -> None:
    target = write_any(tmp_path / "it.gguf", architecture)
    beside = write_eagle3(tmp_path / "head.gguf", EAGLE)
    drafted_losslessly(target, str(beside))
