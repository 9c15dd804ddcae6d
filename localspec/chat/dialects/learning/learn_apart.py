"""Learns a dialect without an existing renderer process."""

from __future__ import annotations

from functools import cache

from localspec.chat.dialects.dialect import Dialect


@cache
def learn(template: str, *, bos: str = "", eos: str = "") -> Dialect:
    """Learn from a template how its model writes.

    The template is rendered in a separate process, which is killed after two seconds. What one
    rendering teaches must read another one correctly, or it is dropped.

    Args:
        template: the Jinja text.
        bos: the text of the token that begins a conversation, if the template uses it.
        eos: the text of the token that ends an answer, if the template uses it.

    Returns:
        a dialect that is not `known` if nothing can be learnt.
    """
    # Imported late, because reading answers needs no renderer.
    from localspec.chat.dialects.learning.learner import learnt  # noqa: PLC0415
    from localspec.chat.prompt.renderer import TemplateRenderer, TemplateSource  # noqa: PLC0415

    renderer = TemplateRenderer()
    try:
        return learnt(renderer, TemplateSource(template, bos, eos))
    finally:
        renderer.close()
