"""`localspec serve`: the loaded pair for editors and other programs."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING

import click

from localspec.cli.option_types import UserFile, no_nan, plain_text
from localspec.cli.shared_options import IDLE_UNLOAD, GroupedCommand, option, shared_options
from localspec.cli.standard_streams import ProgressLine, warn
from localspec.connections import may_be_sent
from localspec.errors import LocalspecError, UsageError, installs_extra, runs
from localspec.safe_text import decoded_without_zeros

if TYPE_CHECKING:
    from localspec.loading.load_request import LoadRequest
    from localspec.process.engine_client import EngineClient
    from localspec.serve.access import AccessRules

_LARGEST = 1 << 16
_SHORTEST = 16
_RANDOM = '-c "import secrets; print(secrets.token_urlsafe(32))"'


@click.command(name="serve", cls=GroupedCommand)
@shared_options
@option("--host", plain_text, "Address to listen at.", "ADDRESS", default="127.0.0.1")
@option(
    "--port", click.IntRange(0, 65535), "Port to listen at; 0 for any that is free.", default=8080
)
@option(
    "--api-key-file",
    UserFile(exists=True),
    "Require one of the keys in this file, one on each line. Addresses that others can reach need"
    " this.",
    "FILE",
)
@option("--queue", click.IntRange(0, 10_000), "Requests that may wait.", default=16)
@option(
    "--timeout",
    click.FloatRange(1, 1e6),
    "Seconds of the engine's time that one answer may take.",
    "S",
    default=1800.0,
    callback=no_nan,
)
@option(
    "--allow-host",
    plain_text,
    "A name that clients may call this machine by; may be repeated.",
    "NAME",
    multiple=True,
)
@option(
    "--allow-origin",
    plain_text,
    "A web page's origin that may ask; may be repeated.",
    "URL",
    multiple=True,
)
@option(
    "--models",
    plain_text,
    "Installed pairs that requests may name, with commas between; 'none' allows no other pair."
    "  [default: all]",
    "NAMES",
)
@IDLE_UNLOAD
@click.option(
    "--strict-model",
    is_flag=True,
    help="Refuse requests for a model of another name; without this the loaded pair answers them.",
)
def command(
    options: LoadRequest,
    *,
    host: str,
    port: int,
    api_key_file: Path | None,
    queue: int,
    timeout: float,
    allow_host: tuple[str, ...],
    allow_origin: tuple[str, ...],
    models: str | None,
    idle_unload: float,
    strict_model: bool,
) -> None:
    """Answer other programs, in OpenAI's protocols and in Anthropic's.

    PAIR is a short name, a GGUF file or a reference `user/repo[:QUANT]`; without it the pair that
    `chat` or `serve` used last answers. Options of the conversation are the defaults of requests.
    """
    _require_packages()
    from localspec.process.engine_client import EngineClient  # noqa: PLC0415 - it begins to load
    from localspec.serve import http_server  # noqa: PLC0415

    rules = _rules(host, _keys(api_key_file), allow_host, allow_origin)
    _require_installed(models)
    with http_server.listening(host, port) as sock:
        line = ProgressLine()
        line.step("Loading")
        # The speed of an answer must not tell a client what was said in the chat.
        engine = EngineClient(replace(options, past=False))
        asyncio.run(
            http_server.serve(
                engine,
                sock,
                rules,
                queue=queue,
                seconds=timeout,
                idle=idle_unload,
                strict=strict_model,
                others=lambda: _others(models),
                on_ready=lambda: _welcome(engine, sock, line),
                show=line.update,
            )
        )


def _require_packages() -> None:
    try:
        import starlette  # noqa: F401, PLC0415
        import uvicorn  # noqa: F401, PLC0415
    except ImportError:
        raise LocalspecError(
            "`localspec serve` needs packages that are not installed",
            f"Install them: {installs_extra('serve')}",
        ) from None


def _rules(
    host: str, keys: Sequence[str], names: Sequence[str], origins: Sequence[str]
) -> AccessRules:
    """Who may ask at this address.

    Raises:
        UsageError: others can reach it without a key; or no request can match a name or an origin.
    """
    from localspec.serve import access  # noqa: PLC0415 - it needs the extra

    if host not in access.LOCAL and not keys:
        raise UsageError(
            f"{host} can be reached by others, and there is no key",
            "Give --api-key-file, or leave out --host.",
        )
    known = _known("--allow-host", names, access.host_name, "my-machine.lan")
    return access.AccessRules(
        tuple(map(access.digest, keys)),
        access.LOCAL | {host.lower(), *known},
        _known("--allow-origin", origins, access.origin_of, "http://localhost:3000"),
    )


def _known(
    option: str, given: Sequence[str], read: Callable[[str], str], example: str
) -> tuple[str, ...]:
    """What an option allows, as `read` finds it in requests.

    Raises:
        UsageError: no request can have one of them.
    """
    wrong = next((each for each in given if not read(each)), None)
    if wrong is not None:
        raise UsageError(
            f"no request can match {option} {wrong[:64]!r}", f"Give one such as {example}."
        )
    return tuple(map(read, given))


def _others(models: str | None) -> list[str]:
    """The names of pairs that may be loaded: those installed that `models` names, or all."""
    from localspec.pairs.disk import starter  # noqa: PLC0415 - after the engine has begun to load

    names = [pair.name for pair in starter.pairs_here() if pair.complete]
    return [name for name in names if models is None or name in _split(models)]


def _split(models: str) -> list[str]:
    return [name.strip().lower() for name in models.split(",") if name.strip()]


def _require_installed(models: str | None) -> None:
    """Check what ``--models`` names.

    Raises:
        UsageError: a pair is not installed.
    """
    if models is None or models == "none":
        return
    missing = next((name for name in _split(models) if name not in _others(models)), None)
    if missing is not None:
        raise UsageError(
            f"no pair named {missing[:64]} is installed",
            "`localspec list` shows those that are; `localspec pull` fetches others.",
        )


def _keys(path: Path | None) -> list[str]:
    """The keys in a file: a line each, blank lines and those with a # left out.

    Raises:
        UsageError: the file cannot be read or is too large, or a key is too short or no header can
            hold it.
    """
    if path is None:
        return []
    try:
        with path.open("rb") as file:
            raw = file.read(_LARGEST + 1)
        lines = decoded_without_zeros(raw).splitlines()
    except (OSError, UnicodeDecodeError):
        raise UsageError(f"the keys in {path} cannot be read", "Write one a line.") from None
    if len(raw) > _LARGEST:
        raise UsageError(f"{path} is larger than {_LARGEST >> 10} KB", "Write fewer keys.")
    keys = [key for line in lines if (key := line.strip()) and not key.startswith("#")]
    make_one = f"Make one: {runs(_RANDOM)}"
    if not keys or min(map(len, keys)) < _SHORTEST:
        raise UsageError(
            f"{path} holds no key, or one of less than {_SHORTEST} characters",
            make_one,
        )
    if not all(map(may_be_sent, keys)):
        raise UsageError(f"a key in {path} has a character that no header can hold", make_one)
    return keys


def _welcome(engine: EngineClient, sock: socket.socket, line: ProgressLine) -> None:
    """Print the address, and the notices from loading."""
    line.clear()
    host, port = sock.getsockname()[:2]
    if ip_address(host).is_unspecified:  # Windows connects to none
        host = "::1" if ":" in host else "127.0.0.1"
    shown = f"[{host}]" if ":" in host else host
    info = engine.latest
    if info is not None:
        for notice in info.notices:
            warn(notice)
        models = info.target_name + (f" with {info.draft_name}" if info.draft_name else "")
        click.echo(f"{info.pair_name}: {models}", err=True)
    click.echo(f"http://{shown}:{port}/v1  (Ctrl+C ends it)", err=True)
