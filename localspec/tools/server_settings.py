"""The settings of MCP servers, in the file form that other programs use (``mcpServers``).

::

    {"mcpServers": {
        "files": {"command": "mcp-server-files", "args": ["/home/me/notes"]},
        "issues": {"url": "https://example.org/mcp", "headers": {"X-Key": "${TOKEN}"}}
    }}
"""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections.abc import Callable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta, Struct, structs

from localspec import connections, private
from localspec.errors import UsageError
from localspec.safe_text import decoded, encodable, reason, safe

FILE = "mcp.json"
_SERVERS = "mcpServers"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}")
_LISTED = re.compile(r"\S(.{0,62}\S)?")  # in a file of another program
_VARIABLE = re.compile(r"\$\{(?:env:)?([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # RFC 9110, section 5.6.2
_USUAL_TIMEOUT_S = 60.0


class ServerSettings(Struct, frozen=True, omit_defaults=True):
    """How one server is reached: a command to run, or a URL.

    Attributes:
        env: environment variables of the command, in addition to a few of the user's own.
        cwd: the working folder of the command; empty for the present one.
        headers: sent with every request to the URL.
        disabled_tools: the names of those that are not offered to the model.
        timeout: seconds that connecting, and each call, may take.
        mode: ``legacy`` for servers that fail at requests newer than 2026-07-28.
    """

    command: str = ""
    args: tuple[str, ...] = ()
    env: dict[str, str] = {}
    cwd: str = ""
    url: str = ""
    headers: dict[str, str] = {}
    disabled: bool = False
    disabled_tools: tuple[str, ...] = msgspec.field(default=(), name="disabledTools")
    timeout: Annotated[float, Meta(gt=0, le=3600)] = _USUAL_TIMEOUT_S
    mode: Literal["auto", "legacy"] = "auto"

    @property
    def shown(self) -> str:
        """The command as a shell has it, or the URL."""
        return self.url or shlex.join([self.command, *self.args])

    @property
    def folder(self) -> str:
        """The folder in which the command is run; empty for a URL, or if it is gone."""
        try:
            where = Path(_VARIABLE.sub(_meant, self.cwd)).absolute()
        except OSError:
            return ""
        return "" if self.url else encodable(str(where))

    def identity(self) -> dict[str, Any]:
        """What a permission applies to: a server's settings without switches and secret values.

        Of variables in the command, its folder and the URL, it has a hash of what they stand for.
        """
        named = {"command": self.command, "args": list(self.args), "url": self.url}
        texts = [self.command, *self.args, self.url, self.cwd]
        meant = [_VARIABLE.sub(_meant, text) for text in texts]
        hashed = sha256(json.dumps(meant).encode()).hexdigest()
        values = {} if meant == texts else {"values": hashed}
        return {
            **named,
            "cwd": self.folder,
            "env": sorted(self.env),
            "headers": sorted(self.headers),
            **values,
        }

    def expanded(self, name: str, environment: Mapping[str, str]) -> ServerSettings:
        """These settings with ``${VARIABLE}`` replaced, for the start of the server alone.

        ``${VARIABLE:-text}`` stands for the text where the variable is not set. Nothing is run.
        White space around the value of a header, such as the line end of a file, is left out.

        Raises:
            UsageError: a variable is not set, the URL is none, or a header cannot be sent.
        """

        def value(match: re.Match[str]) -> str:
            found = environment.get(match[1], match[2])
            if found is None:
                raise UsageError(
                    f"the server {name} needs the environment variable {match[1]}",
                    f"Set {match[1]}, then start localspec again.",
                )
            if encodable(found) != found:
                raise UsageError(
                    f"the server {name} needs {match[1]}, which is not UTF-8", "Set it anew."
                )
            return found

        def text(of: str) -> str:
            return _VARIABLE.sub(value, of)

        found = structs.replace(
            self,
            command=text(self.command),
            args=tuple(text(one) for one in self.args),
            env={key: text(one) for key, one in self.env.items()},
            cwd=text(self.cwd),
            url=text(self.url),
            headers={key: text(one).strip() for key, one in self.headers.items()},
        )
        _require_headers(name, found.headers)
        if found.url:
            _require_url(name, found.url, self.url)
        return found


def _meant(match: re.Match[str]) -> str:
    """What a variable stands for now; nothing if it is not set."""
    return os.environ.get(match[1], match[2] or "")


def _require_url(name: str, url: str, shown: str) -> None:
    """Check a URL; it may hold secrets, which the error as `shown` does not.

    Raises:
        UsageError: it is none.
    """
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:
        good = False
    if not good:
        raise UsageError(f"the server {name} has an invalid URL: {shown}", "Use http or https.")


def _require_headers(name: str, headers: Mapping[str, str]) -> None:
    for key, value in headers.items():
        if not (_HEADER.fullmatch(key) and connections.may_be_sent(value)):
            raise UsageError(
                f"the server {name} has a header that cannot be sent: {key}",
                "Its name and its value must be ASCII, in one line.",
            )


def split(line: str) -> list[str]:
    """The words of a line as a shell has them; on Windows a backslash is one of a path.

    Raises:
        ValueError: a quote has no end.
    """
    lexer = shlex.shlex(line, posix=True, punctuation_chars=False)
    lexer.whitespace_split, lexer.commenters = True, ""
    if sys.platform == "win32":
        lexer.escape = ""
    return list(lexer)


def added(words: str) -> tuple[str, ServerSettings]:
    """Read ``NAME [VARIABLE=VALUE …] COMMAND …`` or ``NAME URL``.

    Raises:
        UsageError: it is neither, or NAME has other characters than letters, digits, _ and -.
    """
    remedy = "Say /mcp add NAME COMMAND …, or /mcp add NAME URL."
    try:
        name, *rest = split(words)
    except ValueError as error:
        raise UsageError(f"this is not a server: {reason(error)}", remedy) from None
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"a server cannot be named {name}", "Use up to 32 letters, digits, _ and -."
        )
    env = {}
    while rest and (found := _ASSIGNMENT.fullmatch(rest[0])):
        env[found[1]] = found[2]
        del rest[0]
    if not rest:
        raise UsageError(f"the server {name} has no command", remedy)
    if "://" in rest[0]:
        if len(rest) > 1 or env:
            raise UsageError("nothing may follow the URL of a server", remedy)
        _require_url(name, rest[0], rest[0])
        return name, ServerSettings(url=rest[0])
    return name, ServerSettings(command=rest[0], args=tuple(rest[1:]), env=env)


class ServersFile:
    """The file of the servers; it is read anew at every use, and changed one entry at a time.

    What other programs have in it stays. Only the user may read it.

    Attributes:
        path: where it is; it need not exist.
        problems: the faults of the last reading, a sentence each.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.problems: list[str] = []

    def servers(self) -> dict[str, ServerSettings]:
        """All servers with valid settings, by name.

        Raises:
            UsageError: the file cannot be read, or is not JSON.
        """
        self.problems, found = [], {}
        for name, entry in self._entries(self._document()).items():
            try:
                one = msgspec.convert(entry, ServerSettings)
            except msgspec.ValidationError as error:
                self.problems.append(f"{self.path.name}: the server {name} is left out: {error}")
                continue
            if not _LISTED.fullmatch(name) or safe(name) != name:
                self.problems.append(f"{self.path.name}: no server can be named {name!r}")
            elif bool(one.command) is bool(one.url):
                self.problems.append(
                    f"{self.path.name}: the server {name} is left out:"
                    " it needs either a command or a url"
                )
            else:
                found[name] = one
        return found

    def names(self) -> list[str]:
        """The names of all entries, also of those that are left out; raises as `servers`."""
        return list(self._entries(self._document()))

    def put(self, name: str, settings: ServerSettings) -> None:
        """Add a server, or replace it.

        Raises:
            UsageError: as `servers`; also if the file cannot be written.
        """
        self._change(lambda entries: entries.update({name: msgspec.to_builtins(settings)}))

    def switch(self, name: str, **changes: Any) -> None:
        """Change some fields of a server, by their names in the file; raises as `put`."""

        def change(entries: dict[str, Any]) -> None:
            entries[name] = {**entries.get(name, {}), **changes}

        self._change(change)

    def remove(self, name: str) -> None:
        """Remove a server; raises as `put`."""
        self._change(lambda entries: entries.pop(name, None))

    def _change(self, change: Callable[[dict[str, Any]], object]) -> None:
        document = self._document()
        entries = self._entries(document)
        change(entries)
        try:
            private.write_json(self.path, {**document, _SERVERS: entries})
        except OSError as error:
            raise UsageError(
                f"{self.path} cannot be written: {reason(error)}", "Check its permissions."
            ) from None

    def _document(self) -> dict[str, Any]:
        if not self.path.exists():
            return {}
        try:
            private.close_to_others(self.path)
            found = msgspec.json.decode(decoded(self.path.read_bytes()))
        except (OSError, ValueError, RecursionError) as error:
            raise UsageError(f"{self.path} cannot be used: {reason(error)}", _MEND) from None
        if not isinstance(found, dict):
            raise UsageError(f"{self.path} is not a JSON object", _MEND)
        return found

    def _entries(self, document: dict[str, Any]) -> dict[str, Any]:
        found = document.get(_SERVERS, {})
        if not isinstance(found, dict):
            raise UsageError(f"{self.path}: {_SERVERS} is not a JSON object", _MEND)
        return dict(found)


_MEND = "Mend the file, or move it away: it stays as it is."
