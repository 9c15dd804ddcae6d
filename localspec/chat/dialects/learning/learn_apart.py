"""What is learnt from a chat template, for those who have no process that renders."""

from __future__ import annotations

from functools import cache

from localspec.chat.dialects.dialect import Dialect


@cache
def learn(template: str, *, bos: str = "", eos: str = "") -> Dialect:
    """What a template tells of how its model writes.

    It is rendered in a process of its own, which is ended after two seconds. What one of its
    renderings teaches has to read another one back, or it is dropped.

    Args:
        template: the Jinja text.
        bos: the text of the token that begins a conversation, if the template asks for it.
        eos: the same of the one that ends an answer.

    Returns:
        a dialect that is not `known` where nothing can be learnt.
    """
    # Late: who reads answers alone needs nothing that renders.
    from localspec.chat.dialects.learning.learner import learnt  # noqa: PLC0415
    from localspec.chat.prompt.renderer import TemplateRenderer, TemplateSource  # noqa: PLC0415

    renderer = TemplateRenderer()
    try:
        return learnt(renderer, TemplateSource(template, bos, eos))
    finally:
        renderer.close()
