"""How much drafters made for the bare target still guess right when it has an adapter (LoRA).

The toy of the tests answers 14 questions, greedily, with random adapters of growing strength. The
adapters are random, not fine-tuned: they show how far drafts can depend on the bare target's
weights, not how far they do with an adapter that has learnt something. It takes two minutes on a
core.

    uv run python -m benchmarks.adapters
"""

from __future__ import annotations

import tempfile
from contextlib import closing
from pathlib import Path

from localspec.chat.events import RoundText
from localspec.engine.cancel import Cancel
from localspec.loading.load import load_session
from localspec.loading.load_request import LoadRequest
from tests.support import toy
from tests.support.adapters import write_adapter

STRENGTHS = (0.0, 0.1, 0.2, 0.3, 0.5)  # of the changes, in standard deviations of the weights
DRAFTS = {"mtp": "mtp", "eagle3": str(toy.EAGLE3), "model": str(toy.DRAFT)}


def answers(draft: str, adapter: Path | None) -> tuple[list[list[int]], float]:
    """The tokens of each answer, and the share of drafted tokens that were accepted."""
    request = LoadRequest(
        pair=str(_target(draft)),
        draft=draft,
        lora=((str(adapter), 1.0),) if adapter else (),
        ctx_size=1024,
        threads=1,
        flash_attn="on",
        temp=0.0,
        seed=1,
        gamma=2,
        n_predict=64,
        scan=False,
        past=False,
        draft_anyway=True,
    )
    texts, rounds = [], []
    with closing(load_session(request, progress=lambda *_: None, cancel=Cancel())) as session:
        for question in toy.questions(14).prompts:
            session.open([])
            events = session.turn(question.text, Cancel())
            one = [each.round for each in events if isinstance(each, RoundText)]
            texts.append([token for each in one for token in each.tokens])
            rounds += one
    drafted = sum(each.drafted for each in rounds)
    return texts, sum(each.accepted for each in rounds) / drafted


def _target(draft: str) -> Path:
    return toy.mtp() if draft == "mtp" else toy.TARGET


def _alike(plain: list[list[int]], texts: list[list[int]]) -> float:
    """The share of tokens that are equal at the same place of the same answer."""
    same = sum(
        one == other
        for before, after in zip(plain, texts, strict=True)
        for one, other in zip(before, after, strict=False)
    )
    return same / sum(map(len, plain))


def main() -> None:
    print("| strength | tokens as without | mtp | eagle3 | model |\n|---|---|---|---|---|")
    plain, _ = answers("mtp", None)
    with tempfile.TemporaryDirectory() as folder:
        for strength in STRENGTHS:
            path, accepted, alike = Path(folder) / "it.gguf", [], 1.0
            for name, draft in DRAFTS.items():
                adapter = write_adapter(path, _target(draft), strength=strength, rank=8)
                texts, share = answers(draft, adapter)
                accepted.append(share)
                if name == "mtp":
                    alike = _alike(plain, texts)
            print(f"| {strength} | {alike:.2f} | {' | '.join(f'{it:.2f}' for it in accepted)} |")


if __name__ == "__main__":
    main()
