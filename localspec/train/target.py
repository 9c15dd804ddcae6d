"""The target that a head is trained or judged for: found by name, and how it is loaded."""

from __future__ import annotations

from localspec.drafter_names import NONE
from localspec.loading.load_request import LoadRequest
from localspec.pairs.gguf import usable
from localspec.pairs.gguf.header import ModelFiles, read_model
from localspec.pairs.names import resolver
from localspec.train.head.shape import require_trainable
from localspec.train.step_costs import CONTEXT


def find(pair: str, *, scan: bool) -> tuple[str, ModelFiles]:
    """Find a target, and check by its header that a head can be trained for it.

    Returns:
        Its name and its files.

    Raises:
        LocalspecError: the model does not exist, or no head can be trained for it.
    """
    resolved = resolver.resolve(pair, NONE, scan=scan)
    files = read_model(resolved.target)
    require_trainable(files.header, resolved.target.name)
    usable.require_usable(files.header, str(resolved.target))
    return resolved.name, files


def target_options(files: ModelFiles, draft: str, threads: int | None = None) -> LoadRequest:
    """The request to load a target for measuring and judging."""
    path = str(files.paths[0])
    return LoadRequest(
        pair=path, draft=draft, ctx_size=CONTEXT, gamma=0, threads=threads, past=False
    )
