"""`localspec run`: one prompt, one answer on standard output."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from localspec.cli.interrupt import interruptible
from localspec.cli.option_types import plain_path, plain_text
from localspec.cli.questions import is_question
from localspec.cli.shared_options import REPEAT_STOP, GroupedCommand, option, shared_options, typed
from localspec.cli.standard_streams import read_prompt, with_input
from localspec.errors import Cancelled, LocalspecError, NotOnHub
from localspec.loading.load_request import LoadRequest
from localspec.safe_text import one_line

if TYPE_CHECKING:
    from localspec.chat.history.tree import StoredConversation
    from localspec.cli.answers.allowed_tools import AllowedTools


class QuestionCommand(GroupedCommand):
    """Takes a question in place of PAIR as the prompt."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse; "-", or a word with white space in it that is not a file, cannot name a pair."""
        rest = super().parse_args(ctx, args)
        given: dict[str, Any] = ctx.params
        named = ctx.get_parameter_source("pair") is ParameterSource.COMMANDLINE
        alone = named and given["question"] is None
        if alone and (given["pair"] == "-" or is_question(given["pair"])):
            given["question"], given["pair"] = given["pair"], ctx.lookup_default("pair")
            ctx.set_parameter_source("pair", ParameterSource.DEFAULT_MAP)
        return rest


@click.command(name="run", cls=QuestionCommand)
@shared_options
@click.argument("question", required=False, type=plain_text, metavar="[PROMPT]")
@option(
    "-p --prompt",
    plain_text,
    "The same as PROMPT.",
    "TEXT",
)
@click.option(
    "--continue",
    "latest",
    is_flag=True,
    help="Continue the latest conversation, with its pair and system prompt.",
)
@click.option(
    "--log/--no-log",
    default=True,
    show_default=True,
    help="Store question and answer, for `localspec logs` and --continue.",
)
@option(
    "--mcp",
    plain_text,
    "Offer the model the tools of this MCP server, which `/mcp add` in the chat has added; may be"
    " repeated.",
    "NAME",
    multiple=True,
    show_default=False,
)
@option(
    "--allow-tool",
    plain_text,
    "Run this tool when the model calls it, as well as the tools that the chat always runs; may be"
    " repeated.",
    "NAME",
    multiple=True,
    show_default=False,
)
@REPEAT_STOP
@click.option("--stats", is_flag=True, help="Print the figures to standard error afterwards.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of text.")
@option(
    "--trace",
    click.Path(dir_okay=False, path_type=Path),
    "Write a trace to this file; the run can be replayed from it.",
    None,
    callback=plain_path,
)
def command(
    *,
    options: LoadRequest,
    question: str | None,
    prompt: str | None,
    latest: bool,
    log: bool,
    mcp: tuple[str, ...],
    allow_tool: tuple[str, ...],
    repeat_stop: bool,
    stats: bool,
    as_json: bool,
    trace: Path | None,
) -> None:
    """Answer one prompt on standard output.

    PAIR is a short name, a GGUF file or a reference `user/repo[:QUANT]`; without it the starter
    answers, and a PROMPT of several words may stand alone. Without PROMPT, or with '-', standard
    input is the prompt. Else text that is piped in is read to its end and follows PROMPT.
    """
    if question is not None and prompt is not None:
        raise click.UsageError("PROMPT and --prompt say the same: give one of them.")
    text = _text(prompt if question is None else question, options)
    options = replace(options, repeat_stop=repeat_stop)
    before = None
    if latest:
        before, options = _latest(options)
    if typed("allow_tool") and not mcp:
        raise click.UsageError("--allow-tool needs a server: give --mcp NAME too.")
    # Late: `run --help` needs no engine. It imports and loads while this process imports the rest.
    from localspec.process.engine_client import JobClient  # noqa: PLC0415

    with closing(JobClient()) as worker, _tools(mcp, allow_tool) as tools:
        from localspec.process.jobs import AnswerJob  # noqa: PLC0415

        said = [node.message for node in before.tree.path()] if before is not None else []
        path = None if trace is None else str(trace)
        offered = (tools.offer.described, tools.offer.search) if tools else ((), ())
        worker.begin(AnswerJob(options, text, path, tuple(said), *offered))
        from localspec.cli import stored_conversations  # noqa: PLC0415
        from localspec.cli.answers.answer_output import print_answer  # noqa: PLC0415

        keep = partial(stored_conversations.keep, text, before=before) if log else None
        call = partial(tools.results, stopped=lambda: worker.stopped) if tools else None
        printed = partial(print_answer, worker, stats=stats, as_json=as_json, keep=keep, call=call)
        if interruptible(printed, worker.stop):
            raise Cancelled


def _text(asked: str | None, options: LoadRequest) -> str:
    """The prompt, with what standard input adds to it.

    Raises:
        LocalspecError: it is empty, or would be read for a pair that does not exist.
    """
    if asked is None and typed("pair"):
        _require_pair(str(options.pair), scan=options.scan)
    text = read_prompt() if asked in (None, "-") else with_input(str(asked))
    if not text.strip():
        raise LocalspecError("the prompt is empty", "Say what to answer: -p TEXT.")
    return text


def _require_pair(name: str, *, scan: bool) -> None:
    """Look a pair up before its prompt is typed: its name may have been meant as the prompt.

    Raises:
        LocalspecError: nothing has that name.
    """
    from localspec.pairs.names import resolver  # noqa: PLC0415 - late, as below

    try:
        resolver.meaning(name, scan=scan)
    except NotOnHub as error:
        asks = f'To ask: localspec run -p "{one_line(name, 60)}"'
        raise NotOnHub(error.message, f"{error.remedy} {asks}") from None


@contextmanager
def _tools(servers: Sequence[str], allowed: Sequence[str]) -> Iterator[AllowedTools | None]:
    """The tools of these servers; None for none.

    Raises:
        UsageError: a server or a tool cannot be used.
    """
    if not servers:
        yield None
        return
    from localspec.cli.answers.allowed_tools import AllowedTools  # noqa: PLC0415

    with closing(AllowedTools(servers, allowed)) as tools:
        yield tools


def _latest(options: LoadRequest) -> tuple[StoredConversation, LoadRequest]:
    """The latest conversation, and `options` with its pair and prompt where none are typed.

    Raises:
        ConversationError: there is none, or it cannot be read.
    """
    from localspec.cli import stored_conversations  # noqa: PLC0415

    given = {name for name in ("pair", "target", "draft", "system_prompt") if typed(name)}
    conversation = stored_conversations.latest().id
    found = stored_conversations.ask(lambda store: store.load(conversation))
    pair, prompt = found.header.pair, found.header.parameters.get("system_prompt")
    if not given & {"pair", "target"} and pair.target:
        draft = options.draft if "draft" in given else pair.draft
        options = replace(options, pair=pair.target, draft=draft)
    if "system_prompt" not in given and isinstance(prompt, str):
        options = replace(options, system_prompt=prompt)
    return found, options
