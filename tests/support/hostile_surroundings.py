"""Environments that a command may be started in: variables, folders and streams of every kind.

Each case is a real process. It has to end with an answer, or with a sentence that says what is
wrong: never with a traceback, and never with "localspec has a fault".
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from tests.support import toy

PATIENCE_S = 90.0
ROOT = Path(__file__).parents[2]
FAULTY = re.compile("has a fault|Traceback|something unforeseen|Exception ignored")

_PATHS = (
    *("/no/such/folder", os.devnull, f"{os.devnull}/x", "/", "/proc", "", " ", ".", "gone/deep"),
    *("~", "~nobody-at-all/x", "x" * 5000, "\udcff\udcfe", "a\nb", "\x1b[2J", "%s{x}", "é/漢"),
    *("FILE", "EMPTY", "LOOP", "LOCKED"),  # made by `_placed`
)
_ADDRESSES = (
    *("", " ", "http://[", "http://127.0.0.1:1", "127.0.0.1:1", "nonsense://x", "://", "http://"),
    *("http://user:secret@127.0.0.1:1", "http://127.0.0.1:99999", "http://127.0.0.1:x", "[", "*"),
    *(
        "socks5://127.0.0.1:1",
        "https://127.0.0.1:1/a b/%zz",
        "http://é.test",
        "http://" + "a" * 300,
    ),
    *("\x1b[2J", "\udcff", "http://127.0.0.1:1/" + "x" * 5000, "file:///etc/passwd", "http://.."),
)
_WORDS = (
    *("", " ", "0", "-1", "1", "5.7", "abc", "nan", "9" * 400, "true", "é", "\udcff", "\x1b[2J"),
    *("a\nb", "x" * 5000, "%s", "inf", "auto", "C", "de_DE.UTF-8", "dumb", "xterm-256color", '"a'),
)
_OF_PATHS = (
    *("HOME", "TMPDIR", "TEMP", "TMP", "PATH", "PWD", "SHELL", "NETRC"),
    *("XDG_DATA_HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_RUNTIME_DIR"),
    *("LOCALSPEC_DATA", "LOCALSPEC_CACHE", "LOCALSPEC_CONFIG", "LLAMA_CPP_LIB_PATH"),
    *("HF_HOME", "HF_HUB_CACHE", "HF_TOKEN_PATH", "OLLAMA_MODELS", "LLAMA_CACHE"),
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "SSLKEYLOGFILE", "OPENSSL_CONF"),
    *("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "LD_LIBRARY_PATH"),
)
_OF_ADDRESSES = (
    *("HF_ENDPOINT", "HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY", "NO_PROXY"),
    *("https_proxy", "http_proxy", "all_proxy", "no_proxy"),
)
_OF_WORDS = (
    *("TERM", "COLUMNS", "LINES", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "NO_COLOR", "COLORTERM"),
    *("USER", "LOGNAME", "HF_TOKEN", "HF_HUB_OFFLINE", "HF_HUB_DOWNLOAD_TIMEOUT", "HF_DEBUG"),
    *("HF_HUB_ETAG_TIMEOUT", "HF_HUB_VERBOSITY", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"),
    *("LOCALSPEC_ENGINE", "LOCALSPEC_DEMO", "_LOCALSPEC_COMPLETE", "COMP_WORDS", "COMP_CWORD"),
    *("ESCDELAY", "TEXTUAL_FPS", "TEXTUAL_DRIVER", "TEXTUAL_THEME", "TEXTUAL_COLOR_SYSTEM"),
    *("TEXTUAL_LOG", "TEXTUAL_ANIMATIONS", "TEXTUAL_SCREENSHOT", "TEXTUAL_FILTERS", "TERM_PROGRAM"),
    *("LOCALSPEC_TRACEBACK", "CUDA_PATH", "GGML_VK_VISIBLE_DEVICES", "GGML_BACKEND_PATH"),
    *("GGML_NO_BACKTRACE", "GGML_SCHED_DEBUG", "LLAMA_LOG_VERBOSITY", "NPY_DISABLE_CPU_FEATURES"),
    *("PYTHONUTF8", "PYTHONSAFEPATH", "PYTHONOPTIMIZE", "PYTHONUNBUFFERED", "PYTHONNOUSERSITE"),
)
# With other values Python itself ends before a line of localspec runs, or writes compiled modules
# next to the sources, where a wheel would take them in.
_OF_PYTHON = {
    "PYTHONUTF8": ("0", "1"),
    "PYTHONOPTIMIZE": ("1", "2"),
    "PYTHONPYCACHEPREFIX": ("/no/such/folder", os.devnull, "/proc", "gone/deep", "\x1b[2J"),
    "PYTHONIOENCODING": ("ascii", "latin-1", "cp1252", "ascii:strict"),
}
_KEPT = ("LOCALSPEC_CACHE", "PYTHONPYCACHEPREFIX")
_COMPLETIONS = ("bash_complete", "zsh_complete", "fish_complete", "bash_source", "nonsense_x")

# What a process stands on and may lack: statements that run before Python starts anew.
_MOUNT = (
    "import ctypes; c = ctypes.CDLL(None, use_errno=True); c.unshare(0x20000);"
    " c.mount(b'none', b'/', None, 0x44000, None);"
)
STATES: Mapping[str, str] = {
    "": "",
    "its folder deleted": "os.rmdir(os.getcwd())",
    "no standard input": "os.close(0)",
    "no standard output": "os.close(1)",
    "no standard error": "os.close(2)",
    "no streams": "os.closerange(0, 3)",
    "a full standard output": "os.dup2(os.open('/dev/full', os.O_WRONLY), 1)",
    "a folder as input": "os.dup2(os.open('/', os.O_RDONLY), 0)",
    "no file may grow": "resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))",
    "few open files": "resource.setrlimit(resource.RLIMIT_NOFILE, (12, 12))",
    "nothing for others": "os.umask(0o777)",
    "signals ignored": "[signal.signal(n, signal.SIG_IGN) for n in (2, 13, 15)]",
    "a read-only disk": _MOUNT + " c.mount(b'none', b'/', None, 0x1021, None)",
    "no /proc": _MOUNT + " c.mount(b'none', b'/proc', b'tmpfs', 0, None)",
    "no /dev/shm": _MOUNT + " c.mount(b'none', b'/dev/shm', b'tmpfs', 1, None)",
    "no /sys": _MOUNT + " c.mount(b'none', b'/sys', b'tmpfs', 0, None)",
}
_START = (
    "import json, os, resource, signal, sys; given = json.loads(sys.argv[1]); exec(given['state']);"
    " os.execve(given['words'][0], given['words'], given['env'])"
)
_STOPPED = (130, -signal.SIGINT, -signal.SIGKILL)
PROGRAM = "import sys; sys.argv[0] = 'localspec'; from localspec.cli import main; main()"
_SHORT = ("-n", "2", "--gamma", "0", "-t", "1", "-c", "128")
COMMANDS_TRIED: tuple[tuple[str, ...], ...] = (
    *(("run", "toy", "-p", "A dog", *_SHORT),) * 6,
    ("run", "toy", "-p", "A dog", "--continue", *_SHORT),
    ("run", "-p", "A dog", *_SHORT),
    *(("pull", "a/b"),) * 4,
    ("pull", "https://huggingface.co/a/b"),
    ("run", "a/b:Q4_0", "-p", "A dog"),
    *(("serve", "toy", "--port", "0", *_SHORT),) * 3,
    *(("chat", "toy", *_SHORT),) * 3,
    ("list",),
    ("show", "toy"),
    ("logs",),
    ("ps",),
    ("rm", "no-such-pair"),
    ("doctor",),
    ("tune", "missing.gguf"),
    ("worker", "--port", "0", "-t", "1"),
    ("--help",),
    ("run", "--help"),
    ("--install-completion", "bash"),
    ("--install-completion",),
    ("bench", "toy", "--compare", "missing.json"),
    ("bench", "toy", "--kinds", "chat", "--repeat", "1", "-n", "2", "-t", "1", "-c", "512"),
    ("train", "toy", "--prompts", "missing.jsonl"),
)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """A command, and what it is started in.

    Attributes:
        words: of the command.
        state: one of `STATES`.
        given: variables that are set; None for those that are missing.
    """

    words: tuple[str, ...]
    state: str = ""
    given: Mapping[str, str | None] = field(default_factory=dict)

    def __str__(self) -> str:
        shown = ", ".join(f"{name}={str(value)[:40]!r}" for name, value in self.given.items())
        return f"localspec {' '.join(self.words[:3])} [{self.state or 'as usual'}; {shown}]"


def cases(seed: int, count: int) -> Iterator[Surroundings]:
    """Draw `count` environments: up to three variables, and in every third one a state."""
    rng = random.Random(seed)
    states = [state for state in STATES if state and state not in _impossible()]
    for _ in range(count):
        given = dict(_variable(rng) for _ in range(rng.randint(0, 3)))
        state = rng.choice(states) if rng.random() < 0.35 or not given else ""
        words = rng.choice(COMMANDS_TRIED)
        if "_LOCALSPEC_COMPLETE" in given:
            given["_LOCALSPEC_COMPLETE"] = rng.choice(_COMPLETIONS)
        yield Surroundings(words, state, given)


def _variable(rng: random.Random) -> tuple[str, str | None]:
    if rng.random() < 0.05:
        name = rng.choice([*_OF_PYTHON])
        return name, rng.choice(_OF_PYTHON[name])
    names, values = rng.choice(
        [(_OF_PATHS, _PATHS), (_OF_ADDRESSES, _ADDRESSES), (_OF_WORDS, _WORDS)]
    )
    name = rng.choice(names)
    if name in _OF_PYTHON:
        return name, rng.choice(_OF_PYTHON[name])
    return name, None if rng.random() < 0.1 else rng.choice(values)


@cache
def _impossible() -> frozenset[str]:
    """The states that this machine does not let a process have: most need to mount something."""
    found = set()
    for name, statements in STATES.items():
        if _MOUNT in statements:
            check = statements.replace(" c.mount(", " assert 0 == c.mount(")
            tried = subprocess.run([sys.executable, "-c", check], capture_output=True, check=False)
            found |= {name} if tried.returncode else set()
    return frozenset(found)


def attack(seed: int, count: int, folder: Path) -> list[str]:
    """Try `count` environments, each in a folder within `folder`; what went wrong, a line each."""
    return [
        f"{one}: {wrong}"
        for number, one in enumerate(cases(seed, count))
        if (wrong := fault_of(one, folder / str(number)))
    ]


def fault_of(one: Surroundings, folder: Path) -> str:
    """What went wrong in an environment; empty where nothing did."""
    folder.mkdir()
    start = _placed(one, folder)
    terminal = one.words[0] == "chat" and not any(
        word in one.state for word in ("standard", "streams", "input")
    )
    code, said = (_in_terminal if terminal else _in_pipes)(one, start, folder)
    if found := FAULTY.search(said):
        return f"{found[0]}: …{said[max(0, found.start() - 300) : found.end() + 500]!r}"
    if code is None:
        return f"it does not end; it said {said[-300:]!r}"
    told = "rror: " in said or _is_silent(one)
    if code not in (0, 1, 2, 130) or (code in (1, 2) and not told and not _completes(one)):
        return f"exit code {code}, and it said {said[-300:]!r}"
    return ""


def _is_silent(one: Surroundings) -> bool:
    """Whether nothing can be said."""
    return one.state in ("no standard error", "no streams")


def _completes(one: Surroundings) -> bool:
    """Whether the shell's completion answers in place of the command: it says nothing of faults."""
    return "_LOCALSPEC_COMPLETE" in one.given


def _placed(one: Surroundings, folder: Path) -> list[str]:
    """The command line that starts it; everything usual is in `folder`."""
    for name in ("home", "data", "cache", "config", "here"):
        (folder / name).mkdir()
    toy.install(folder / "data")
    (folder / "FILE").write_text("a file\n", "utf-8")
    (folder / "EMPTY").touch()
    (folder / "LOOP").symlink_to("LOOP")
    (folder / "LOCKED").mkdir(mode=0)
    environment = {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": str(folder / "home"),
        "TERM": "xterm-256color",
        "LANG": "C.UTF-8",
        "PYTHONPATH": str(ROOT),
        "SETUPTOOLS_USE_DISTUTILS": "stdlib",
        "HF_ENDPOINT": "http://127.0.0.1:1",
        **{f"LOCALSPEC_{each.upper()}": str(folder / each) for each in ("data", "cache", "config")},
        # The tests' own folders of measured costs and of compiled modules, if they have them.
        **{name: os.environ[name] for name in _KEPT if name in os.environ},
    }
    made = ("FILE", "EMPTY", "LOOP", "LOCKED")
    for name, value in one.given.items():
        environment.pop(name, None)
        if value is not None:
            environment[name] = str(folder / value) if value in made else value
    words = [sys.executable, "-c", PROGRAM, *one.words]
    given = json.dumps({"state": STATES[one.state], "words": words, "env": environment})
    return [sys.executable, "-I", "-S", "-c", _START, given]


def _in_pipes(one: Surroundings, start: list[str], folder: Path) -> tuple[int | None, str]:
    """Run without a terminal; an endpoint or a worker is ended once it is ready."""
    process = subprocess.Popen(
        start,
        cwd=folder / "here",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,  # a file could not be written where none may grow
        stderr=subprocess.STDOUT,
    )
    lasts = one.words[0] in ("serve", "worker")
    said = bytearray()
    reader = threading.Thread(target=_read, args=(process, said), daemon=True)
    reader.start()
    end = time.monotonic() + PATIENCE_S
    while process.poll() is None and time.monotonic() < end:
        with suppress(subprocess.TimeoutExpired):
            process.wait(0.05)
        silent = _is_silent(one) and time.monotonic() > end - PATIENCE_S + 10
        if lasts and (b"Ctrl+C ends" in said or silent):
            process.send_signal(signal.SIGKILL if "ignored" in one.state else signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                process.wait(PATIENCE_S)
    ended = process.poll() is not None
    process.kill()
    process.wait()
    reader.join(5)
    code = 0 if lasts and process.returncode in _STOPPED else process.returncode
    return code if ended else None, said.decode("utf-8", "replace")


def _read(process: subprocess.Popen[bytes], said: bytearray) -> None:
    assert process.stdout is not None
    with process.stdout as out:
        while piece := os.read(out.fileno(), 65536):
            said += piece


def _in_terminal(_one: Surroundings, start: list[str], folder: Path) -> tuple[int | None, str]:
    """Run on a terminal, and leave the chat as soon as it shows anything."""
    import pexpect  # noqa: PLC0415 - Windows lacks it

    child = pexpect.spawn(start[0], start[1:], dimensions=(30, 100), cwd=str(folder / "here"))
    said, asked, end = b"", 0.0, time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        try:
            piece: Any = child.read_nonblocking(65536, timeout=0.1)  # bytes: no encoding is set
            said += piece
        except pexpect.TIMEOUT:
            if b"\x1b[?1049h" in said and time.monotonic() - asked > 1:
                with suppress(OSError):
                    child.send("\x11")  # Ctrl+Q
                asked = time.monotonic()
        except pexpect.EOF:
            break
    ended = not child.isalive()
    child.close(force=True)
    text = re.sub(rb"\x1b\[[0-?]*[ -/]*[@-~]", b"", said).decode("utf-8", "replace")
    code = child.exitstatus if child.exitstatus is not None else -(child.signalstatus or 0)
    return code if ended else None, text
