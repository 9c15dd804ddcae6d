"""OpenAI's documents and chunks, made from the engine's events."""

from __future__ import annotations

import codecs
import json
import secrets
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from localspec.chat.dialects import AnswerReader, Call, ContentPiece, Dialect, ThoughtPiece
from localspec.chat.dialects.reading.answer_parts import ReadPiece, Underway
from localspec.chat.events import PromptMade, RoundText, TokensScored, TurnEnd, TurnEvent
from localspec.engine.record.stats import FinishReason, GenerationStats

Delta = dict[str, Any]


class Reply:
    """Makes the reply to one request.

    Args:
        model: the model's name in the reply.
        dialect: how the model marks thoughts and calls; None for a plain completion.
        tools: those that may be called.
        held: a grammar enforces the model's notation of calls, so that their beginnings can be sent
            before they are complete.
        logprobs: whether probabilities were requested.
    """

    def __init__(
        self,
        model: str,
        dialect: Dialect | None,
        *,
        tools: Sequence[Any] = (),
        held: bool = False,
        logprobs: bool = False,
    ) -> None:
        self._chat = dialect is not None
        self._head = {
            "id": f"{'chatcmpl' if self._chat else 'cmpl'}-{secrets.token_hex(12)}",
            "created": int(time.time()),
            "model": model,
            "system_fingerprint": "localspec",
        }
        self._dialect, self._tools = dialect, tools
        self._reader: AnswerReader | None = None
        self._n_calls = 0
        self._held = held
        self._underway: list[tuple[int, str]] = []  # incomplete calls: index, what was sent
        self._logprobs: list[Any] | None = [] if logprobs else None
        self._prompt_tokens = 0
        # Characters sent with probabilities; the decoder holds the bytes of an incomplete one.
        self._offset, self._decoder = 0, codecs.getincrementaldecoder("utf-8")("replace")
        self.end: TurnEnd | None = None

    def take(self, events: Iterable[TurnEvent]) -> Iterator[Delta]:
        """The deltas for these events, as a stream sends them."""
        text = ""
        for event in events:
            match event:
                case PromptMade(tokens, _, prefill):
                    self._prompt_tokens = tokens
                    if self._dialect is not None:
                        self._reader = self._dialect.reader(self._tools, prompt=prefill, exact=True)
                case RoundText():
                    text += event.text
                case TokensScored(tokens) if self._logprobs is not None:
                    self._logprobs += tokens
                case TurnEnd():
                    self.end = event
        if self._reader is None:
            yield from [{"content": text}] if text else []
            return
        yield from self._told(self._reader.feed(text))
        if self._held:
            yield from self._begun(self._reader.underway)
        if self.end is not None:
            cut = self.end.reason is not FinishReason.STOP
            yield from self._told(self._reader.end(cut=cut))

    def _told(self, pieces: Iterable[ReadPiece]) -> Iterator[Delta]:
        for piece in pieces:
            match piece:
                case ThoughtPiece(text):
                    yield {"reasoning_content": text}
                case ContentPiece(text):
                    yield {"content": text}
                case Call(name, arguments, written):
                    if not self._underway:
                        yield self._opened(name)
                    told = self._underway.pop(0)
                    plain = json.dumps(arguments, ensure_ascii=False)
                    yield from _more(*told, written if self._held and written else plain)

    def _begun(self, calls: Underway) -> Iterator[Delta]:
        """The deltas of calls that are being written."""
        del self._underway[len(calls) :]  # text that looked like calls
        for i, (name, text) in enumerate(calls):
            if i == len(self._underway):
                yield self._opened(name)
            yield from _more(*self._underway[i], text)
            self._underway[i] = self._underway[i][0], text

    def _opened(self, name: str) -> Delta:
        """The first delta of a call."""
        index = self._n_calls
        self._n_calls += 1
        self._underway.append((index, ""))
        call = {"id": f"call_{secrets.token_hex(8)}", "type": "function"}
        function = {"name": name, "arguments": ""}
        return {"tool_calls": [{"index": index, **call, "function": function}]}

    # Streams

    def opening(self) -> list[Delta]:
        """The first chunks of a stream."""
        return [self._chunk({"role": "assistant", "content": ""})] if self._chat else []

    def chunks(self, events: Iterable[TurnEvent]) -> Iterator[Delta]:
        """The chunks for these events."""
        deltas = list(self.take(events))
        for delta in deltas:
            yield self._chunk(delta, scored=self._taken_logprobs())
        if self._logprobs:  # of tokens whose text is still held back
            yield self._chunk({"content": ""}, scored=self._taken_logprobs())

    def closing(self, *, usage: bool) -> list[Delta]:
        """The last chunks of a stream."""
        last = self._chunk({}, finish=self._finish())
        last["timings"] = timings(self._stats())
        if not usage:
            return [last]
        return [last, {**self._chunk({}), "choices": [], "usage": self.usage()}]

    def _chunk(
        self, delta: Delta, finish: str | None = None, scored: Sequence[Any] | None = None
    ) -> Delta:
        choice: Delta = {"index": 0, "finish_reason": finish}
        if self._chat:
            kind = "chat.completion.chunk"
            choice["delta"] = delta
        else:
            kind = "text_completion"
            choice["text"] = delta.get("content", "")
        choice["logprobs"] = self._scores(scored) if scored else None
        return {**self._head, "object": kind, "choices": [choice]}

    def _taken_logprobs(self) -> list[Any]:
        found = self._logprobs or []
        if self._logprobs is not None:
            self._logprobs = []
        return found

    # Documents

    def document(self, deltas: Sequence[Delta]) -> Delta:
        """The whole answer as one document, from all its deltas."""
        text = "".join(delta.get("content", "") for delta in deltas)
        thoughts = "".join(delta.get("reasoning_content", "") for delta in deltas)
        calls = _whole_calls(call for delta in deltas for call in delta.get("tool_calls", ()))
        choice: Delta = {"index": 0, "finish_reason": self._finish()}
        if self._chat:
            message: Delta = {"role": "assistant", "content": text if text or not calls else None}
            message |= {"reasoning_content": thoughts} if thoughts else {}
            if calls:
                message["tool_calls"] = calls
            choice["message"] = message
        else:
            choice["text"] = text
        choice["logprobs"] = self._scores(self._logprobs) if self._logprobs else None
        return {
            **self._head,
            "object": "chat.completion" if self._chat else "text_completion",
            "choices": [choice],
            "usage": self.usage(),
            "timings": timings(self._stats()),
        }

    def usage(self) -> Delta:
        """Token counts of the prompt and the answer."""
        stats = self._stats()
        generated = stats.generated_tokens
        return {
            "prompt_tokens": self._prompt_tokens,
            "completion_tokens": generated,
            "total_tokens": self._prompt_tokens + generated,
            "prompt_tokens_details": {"cached_tokens": stats.prefill_cached},
        }

    def _stats(self) -> GenerationStats:
        return self.end.stats if self.end is not None else GenerationStats()

    def _finish(self) -> str:
        if self.end is not None and self.end.reason is FinishReason.STOP:
            return "tool_calls" if self._n_calls else "stop"
        return "length"

    def _scores(self, scored: Sequence[Any]) -> Delta:
        if self._chat:
            return {"content": [_chat_score(*one) for one in scored], "refusal": None}
        offsets = []
        for piece, _, _ in scored:
            offsets.append(self._offset)
            self._offset += len(self._decoder.decode(piece))
        return {
            "tokens": [_name(piece) for piece, _, _ in scored],
            "token_logprobs": [logprob for _, logprob, _ in scored],
            "top_logprobs": [_by_name(best) for _, _, best in scored],
            "text_offset": offsets,
        }


def _more(index: int, told: str, text: str) -> Iterator[Delta]:
    """A delta with the part of a call's arguments that was not sent yet."""
    if text.startswith(told) and text != told:
        yield {"tool_calls": [{"index": index, "function": {"arguments": text[len(told) :]}}]}


def _whole_calls(pieces: Iterable[Delta]) -> list[Delta]:
    """Join the deltas of calls; each call's name comes first."""
    calls: list[Delta] = []
    for piece in pieces:
        function = piece["function"]
        if "id" in piece:
            calls.append({"id": piece["id"], "type": piece["type"], "function": {**function}})
        else:
            calls[piece["index"]]["function"]["arguments"] += function["arguments"]
    return calls


def _chat_score(piece: bytes, logprob: float, best: Iterable[tuple[bytes, float]] = ()) -> Delta:
    return {
        "token": _text(piece),
        "logprob": logprob,
        "bytes": list(piece),
        "top_logprobs": [
            {"token": _text(one), "logprob": p, "bytes": list(one)} for one, p in best
        ],
    }


def _text(piece: bytes) -> str:
    return piece.decode("utf-8", "replace")


def _name(piece: bytes) -> str:
    """A token's name in OpenAI's completions: its text, or its bytes if they are not UTF-8."""
    try:
        return piece.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)


def _by_name(best: Iterable[tuple[bytes, float]]) -> dict[str, float]:
    """Log probabilities by name, the largest first; for equal names, the largest counts."""
    found: dict[str, float] = {}
    for piece, logprob in best:
        found.setdefault(_name(piece), logprob)
    return found


def timings(stats: GenerationStats) -> Delta:
    """Durations and token counts under llama-server's names; times in milliseconds."""
    # As in llama-server, the prompt's last token counts as prompt, though the first round reads it.
    read, generated = stats.prompt_tokens - stats.prefill_cached, stats.generated_tokens
    read_ms = 1e3 * stats.prefill_s
    first = stats.time_to_first_token_s
    written_ms = 1e3 * (stats.after_first_s + max(0.0, (first or 0.0) - stats.prefill_s))
    return {
        "cache_n": stats.prefill_cached,
        "prompt_n": read,
        "prompt_ms": read_ms,
        "prompt_per_second": 1e3 * read / read_ms if read_ms else 0.0,
        "predicted_n": generated,
        "predicted_ms": written_ms,
        "predicted_per_second": 1e3 * generated / written_ms if written_ms else 0.0,
        "draft_cache_n": stats.draft_cached,
        "draft_prompt_n": stats.draft_prefill,
        "draft_n": stats.drafted_tokens,
        "draft_n_accepted": stats.accepted_tokens,
        "drafters": {
            name: {"drafted": its.drafted, "accepted": its.accepted, "seconds": its.seconds}
            for name, its in stats.drafters.items()
        },
    }
