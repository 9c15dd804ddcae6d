"""A Hub on loopback: enough of its HTTP interface for the real client library, and its faults.

Files are served as the Hub serves large ones: ``resolve`` answers with a redirect to another
address (another port), so that forwarding of tokens can be watched.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import http.server
import json
import socket
import ssl
import threading
import urllib.parse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# Key and certificate; they protect nothing.
CERTIFICATE = Path(__file__).parent.parent / "data" / "loopback.pem"


@dataclass(frozen=True)
class Hollow:
    """A large file of which only the beginning is there; zeros follow up to its size."""

    beginning: bytes
    size: int

    def __getitem__(self, part: slice) -> bytes:
        start, stop, _ = part.indices(self.size)
        found = self.beginning[start:stop]
        return found + bytes(stop - start - len(found))


Content = bytes | Path | Hollow


@dataclass
class Repo:
    """One repository: its files by name, and how it may be reached."""

    name: str
    files: dict[str, Content]
    gated: str = ""  # "auto" or "manual"
    granted: bool = True  # whether a good token opens a gated repository
    private: bool = False
    licence: str = "apache-2.0"
    moved_to: str = ""
    lfs: bool = True
    branches: tuple[str, ...] = ("main",)
    commit: str = ""

    def __post_init__(self) -> None:
        names = json.dumps([self.name, sorted(self.files)]).encode()
        self.commit = self.commit or hashlib.sha1(names).hexdigest()

    def sha256(self, name: str) -> str:
        return digest(self.files[name])

    def size(self, name: str) -> int:
        return length(self.files[name])

    def etag(self, name: str) -> str:
        return self.sha256(name) if self.lfs else git_blob_id(self.files[name])


@dataclass
class Seen:
    """One request as the server saw it."""

    method: str
    path: str
    range: str
    authorization: str
    host: str
    sent: int = 0
    told: int = 0  # bytes of an answer that is not a file


@dataclass
class Fault:
    """A bad answer to the next `times` requests whose path contains `match`.

    A fault with `status` answers with it; the others act while a body is sent.
    """

    match: str
    times: int = 1
    method: str = "GET"
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    cut_after: int | None = None  # close the connection after this many bytes of the body
    flip_at: int | None = None  # change the byte at this offset of the file
    hold_after: int | None = None  # send this many bytes, then wait for `release`
    ignore_range: bool = False
    whole: bool = False  # only requests without a range
    chunked: bool = False  # send the body in chunks, its length unsaid
    body: bytes = b""
    reached: threading.Event = field(default_factory=threading.Event)
    release: threading.Event = field(default_factory=threading.Event)


def digest(content: Content) -> str:
    if isinstance(content, bytes):
        return hashlib.sha256(content).hexdigest()
    if isinstance(content, Hollow):  # a name, as it is never fetched whole
        return hashlib.sha256(b"%d %b" % (content.size, content.beginning)).hexdigest()
    return _digest_of_file(content, content.stat().st_size, content.stat().st_mtime_ns)


@functools.lru_cache
def _digest_of_file(path: Path, size: int, changed: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def length(content: Content) -> int:
    if isinstance(content, Hollow):
        return content.size
    return len(content) if isinstance(content, bytes) else content.stat().st_size


def git_blob_id(content: Content) -> str:
    if isinstance(content, Hollow):
        return digest(content)[:40]
    data = content if isinstance(content, bytes) else content.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


class HubServer:
    """The server: add repositories and faults, point ``HF_ENDPOINT`` at `url`, read `seen`."""

    def __init__(self, token: str = "hf_good") -> None:
        self.repos: dict[str, Repo] = {}
        self.faults: list[Fault] = []
        self.seen: list[Seen] = []
        self.token = token
        self.lock = threading.Lock()
        self._server = _Server(("127.0.0.1", 0), _handler(self))
        self._storage = _Server(("127.0.0.1", 0), _handler(self))
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self.storage_url = f"http://127.0.0.1:{self._storage.server_address[1]}"
        self._threads = [
            threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
            for server in (self._server, self._storage)
        ]

    def use_tls(self) -> None:
        """Speak HTTPS from now on, with a certificate for 127.0.0.1 that signs itself."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(CERTIFICATE)
        for server in (self._server, self._storage):
            server.socket = context.wrap_socket(server.socket, server_side=True)
        self.url = self.url.replace("http:", "https:")
        self.storage_url = self.storage_url.replace("http:", "https:")

    def __enter__(self) -> HubServer:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *args: object) -> None:
        for fault in self.faults:
            fault.release.set()
        for server in (self._server, self._storage):
            server.shutdown()
            server.server_close()
        for thread in self._threads:
            thread.join()

    def add(self, name: str, files: Mapping[str, Content], **settings: Any) -> Repo:
        repo = Repo(name, dict(files), **settings)
        self.repos[name] = repo
        return repo

    def fault(self, match: str, **settings: Any) -> Fault:
        fault = Fault(match, **settings)
        with self.lock:
            self.faults.append(fault)
        return fault

    def take_fault(self, seen: Seen) -> Fault | None:
        with self.lock:
            for fault in self.faults:
                fits = fault.method == seen.method and fault.match in seen.path
                if fault.times > 0 and fits and not (fault.whole and seen.range):
                    fault.times -= 1
                    return fault
        return None

    def bodies(self, match: str = "") -> list[Seen]:
        """The file bodies that were asked for, in order."""
        return [seen for seen in self.seen if seen.path.startswith("/cdn/") and match in seen.path]

    def sent(self, match: str = "") -> int:
        """How many bytes of file bodies went out."""
        return sum(seen.sent for seen in self.bodies(match))


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = False
    block_on_close = True
    request_queue_size = 64

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Keep quiet: clients that are killed are part of the tests."""


def _handler(hub: HubServer) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(_Handler):
        server_hub = hub

    return Handler


class _Handler(http.server.BaseHTTPRequestHandler):
    server_hub: HubServer
    protocol_version = "HTTP/1.1"
    timeout = 30

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's
        """Keep quiet."""

    def do_GET(self) -> None:
        self._serve()

    def do_HEAD(self) -> None:
        self._serve()

    def do_POST(self) -> None:
        self._serve()

    def _serve(self) -> None:
        path, _, query = self.path.partition("?")
        path = urllib.parse.unquote(path)
        self.seen = Seen(
            self.command,
            path,
            self.headers.get("Range", ""),
            self.headers.get("Authorization", ""),
            self.headers.get("Host", ""),
        )
        self.server_hub.seen.append(self.seen)
        self.fault = self.server_hub.take_fault(self.seen)
        self.body = self._read_body()
        if self.fault and self.fault.status:
            self._answer(self.fault.status, self.fault.body, self.fault.headers)
        elif path.startswith("/cdn/"):
            self._serve_body(path)
        elif path.startswith("/api/models/"):
            self._serve_api(path.removeprefix("/api/models/"), query)
        else:
            self._serve_resolve(path)

    def _read_body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _repo(self, name: str) -> Repo | None:
        """The repository if this client may see it; otherwise the answer has been sent."""
        authorization = self.headers.get("Authorization", "")
        good = authorization == f"Bearer {self.server_hub.token}"
        repo = self.server_hub.repos.get(name)
        if authorization and not good:
            message = "Invalid credentials in Authorization header"
            self._refuse(401, "", message)
        elif repo is None or (repo.private and not good):
            self._refuse(401, "RepoNotFound", "Repository not found")
        else:
            return repo
        return None

    def _serve_api(self, path: str, query: str) -> None:
        parts = path.split("/")
        repo = self._repo("/".join(parts[:2]))
        if repo is None:
            return
        if repo.moved_to:
            target = "/".join(["/api/models", repo.moved_to, *parts[2:]])
            self._answer(307, b"", {"Location": f"{target}?{query}"})
            return
        if len(parts) > 3 and not self._known("/".join(parts[3:]), repo):
            self._refuse(404, "RevisionNotFound", "Invalid rev id")
            return
        if parts[2:3] == ["paths-info"]:
            wanted = urllib.parse.parse_qs(self.body.decode()).get("paths", [])
            data: Any = [self._entry(repo, name) for name in wanted if name in repo.files]
        else:
            data = self._info(repo)
        self._answer(200, json.dumps(data).encode(), {"Content-Type": "application/json"})

    def _known(self, revision: str, repo: Repo) -> bool:
        return revision in repo.branches or revision == repo.commit

    def _info(self, repo: Repo) -> dict[str, Any]:
        return {
            "_id": "0",
            "id": repo.name,
            "modelId": repo.name,
            "sha": repo.commit,
            "private": repo.private,
            "gated": repo.gated or False,
            "tags": [f"license:{repo.licence}"] if repo.licence else [],
            "cardData": {"license": repo.licence} if repo.licence else {},
            "siblings": [
                {"rfilename": name, **self._entry(repo, name)} for name in sorted(repo.files)
            ],
        }

    def _entry(self, repo: Repo, name: str) -> dict[str, Any]:
        size = repo.size(name)
        blob = git_blob_id(repo.files[name]) if size < 1 << 24 else "0" * 40
        entry: dict[str, Any] = {"type": "file", "path": name, "size": size}
        entry |= {"oid": blob, "blobId": blob}
        if repo.lfs:
            digest = repo.sha256(name)
            entry["lfs"] = {"oid": digest, "sha256": digest, "size": size, "pointerSize": 134}
        return entry

    def _serve_resolve(self, path: str) -> None:
        name, _, rest = path.strip("/").partition("/resolve/")
        repo = self._repo(name)
        if repo is None:
            return
        revision = next((r for r in (*repo.branches, repo.commit) if rest.startswith(r + "/")), "")
        file = rest[len(revision) + 1 :]
        if not revision:
            self._refuse(404, "RevisionNotFound", "Invalid rev id")
        elif file not in repo.files:
            self._refuse(404, "EntryNotFound", "Entry not found", {"X-Repo-Commit": repo.commit})
        elif repo.gated and not self.headers.get("Authorization"):
            self._refuse(401, "GatedRepo", f"Access to model {name} is restricted")
        elif repo.gated and not repo.granted:
            self._refuse(403, "GatedRepo", f"Access to model {name} is restricted")
        else:
            place = urllib.parse.quote(f"/cdn/{name}/{file}")
            self._answer(
                302,
                b"",
                {
                    "Location": f"{self.server_hub.storage_url}{place}",
                    "X-Repo-Commit": repo.commit,
                    "X-Linked-Etag": f'"{repo.etag(file)}"',
                    "X-Linked-Size": str(repo.size(file)),
                    "ETag": f'"{repo.etag(file)}"',
                },
            )

    def _serve_body(self, path: str) -> None:
        owner, name, file = path.removeprefix("/cdn/").split("/", 2)
        content = self.server_hub.repos[f"{owner}/{name}"].files[file]
        total = length(content)
        start, end = 0, total
        headers = {"Accept-Ranges": "bytes"}
        status = 200
        wanted = self.headers.get("Range", "").removeprefix("bytes=")
        if wanted and not (self.fault and self.fault.ignore_range):
            first, _, last = wanted.partition("-")
            start, end = int(first), min(total, int(last) + 1 if last else total)
            if start >= total:
                self._answer(416, b"", {"Content-Range": f"bytes */{total}"})
                return
            status = 206
            headers["Content-Range"] = f"bytes {start}-{end - 1}/{total}"
        chunked = self.fault is not None and self.fault.chunked
        headers |= (
            {"Transfer-Encoding": "chunked"} if chunked else {"Content-Length": str(end - start)}
        )
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            self._send_range(content, start, end)
            if chunked:
                self.wfile.write(b"0\r\n\r\n")

    def _send_range(self, content: Content, start: int, end: int) -> None:
        fault = self.fault
        stop = end
        if fault and fault.cut_after is not None:
            stop = min(end, start + fault.cut_after)
        if fault and fault.hold_after is not None:
            middle = min(end, start + fault.hold_after)
            self._send(content, start, middle)
            fault.reached.set()
            fault.release.wait(30)
            start = middle
        self._send(content, start, stop)
        if stop < end:
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)

    def _send(self, content: Content, start: int, end: int) -> None:
        if end <= start:
            return
        if isinstance(content, Path):
            self.wfile.flush()
            with content.open("rb") as file:
                self.seen.sent += self.connection.sendfile(file, start, end - start)
            return
        data = content[start:end]
        flip = self.fault.flip_at if self.fault else None
        if flip is not None and start <= flip < end:
            changed = bytearray(data)
            changed[flip - start] ^= 0xFF
            data = bytes(changed)
        for piece in range(0, len(data), 1 << 16):
            some = data[piece : piece + (1 << 16)]
            self.seen.sent += len(some)
            if self.fault and self.fault.chunked:
                some = b"%x\r\n%b\r\n" % (len(some), some)
            self.wfile.write(some)

    def _refuse(
        self, status: int, code: str, message: str, headers: dict[str, str] | None = None
    ) -> None:
        more = {"X-Error-Message": message} | ({"X-Error-Code": code} if code else {})
        self._answer(status, b"", more | (headers or {}))

    def _answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        chunked = self.fault is not None and self.fault.chunked
        its = {"Transfer-Encoding": "chunked"} if chunked else {"Content-Length": str(len(body))}
        self.send_response(status)
        for key, value in {**headers, **its}.items():
            self.send_header(key, value)
        self.end_headers()
        for start in range(0, len(body) if self.command != "HEAD" else 0, 1 << 16):
            piece = body[start : start + (1 << 16)]
            self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece) if chunked else piece)
            self.seen.told += len(piece)
        if chunked:
            self.wfile.write(b"0\r\n\r\n")


@contextlib.contextmanager
def running() -> Iterator[HubServer]:
    """Start a server and stop it at the end of the block."""
    with HubServer() as server:
        yield server
