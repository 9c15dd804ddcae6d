"""Errors as clients see them."""

from __future__ import annotations

from typing import Any

from localspec.errors import EngineError, LocalspecError, ModelError, OutOfMemory, SchemaError

INVALID = "invalid_request_error"
OVERFLOW = "context_length_exceeded"
"""The code that says that a prompt, or an answer after it, does not fit in the context."""


class Refusal(Exception):
    """An error reply to a request; each protocol has a form of its own for it.

    Args:
        status: the HTTP status.
        message: what is wrong and what to do.
        kind: OpenAI's ``type``.
        code: a word for programs.
        param: the faulty place in the request.
        retry_after: seconds after which to try again.
        more: further fields.

    Attributes:
        document: OpenAI's form.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = INVALID,
        code: str | None = None,
        param: str | None = None,
        retry_after: int | None = None,
        **more: object,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.param = param
        self.retry_after = retry_after
        self.more = more
        fields = {"message": message, "type": kind, "param": param, "code": code, **more}
        self.document: dict[str, Any] = {"error": fields}


def unavailable(message: str, retry_after: int) -> Refusal:
    """The engine is busy or gone; the client may try again after `retry_after` seconds."""
    return Refusal(
        503, message, kind="unavailable_error", code="unavailable", retry_after=retry_after
    )


def refusal_of(error: Exception) -> Refusal:
    """The refusal that an error is, or the one for an error of the engine."""
    if isinstance(error, Refusal):
        return error
    if isinstance(error, LocalspecError):
        said = f"{error.message}. {error.remedy}".strip()
        if isinstance(error, EngineError | ModelError | OutOfMemory):  # the request is not at fault
            return Refusal(500, said, kind="server_error", code="engine_error")
        if isinstance(error, SchemaError):
            return Refusal(400, said, code="invalid_schema", param=error.place or None)
        return Refusal(400, said)
    return Refusal(
        500,
        f"localspec has a fault ({type(error).__name__})",
        kind="server_error",
        code="internal_error",
    )
