"""Files of odd encodings, given to everything that reads a file that a person may have written.

Each case ends with an answer or with a sentence that says what is wrong.
"""

from __future__ import annotations

import codecs
import gzip
import json
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from unittest import mock

from huggingface_hub import constants

from localspec.bench import comparison, prompt_sets
from localspec.bench.result import FORMAT
from localspec.bench.sharing.shared_file import read_shared
from localspec.chat.history.import_export import read_file
from localspec.cli.settings_file import FILE
from localspec.errors import LocalspecError, exit_code, in_words
from localspec.ui.input.extracts import attached
from tests.support import toy
from tests.support.hostile_options import Outcome, nowhere, run

_SHORT = ("-p", "A dog", "-n", "2", "--gamma", "0", "-t", "1", "-c", "128")
_MESSAGE = {"id": "1", "role": "user", "content": "é"}
_CONVERSATION = {"format": "localspec conversation", "version": 1, "messages": [_MESSAGE]}
_RUN = {"arm": "off", "kind": "é", "prompt": "p", "tokens_per_second": 1.0, "generated_tokens": 99}
_REPORT = {
    "format": FORMAT,
    "environment": {"loaded_with": {}},
    "settings": {},
    "runs": [_RUN],
}
_TEMPLATE = "{% for m in messages %}{{ m.content }}é{% endfor %}"
TEXTS = {
    "grammar": 'root ::= "é" | [a-z]+\n',
    "schema": '{"type": "string", "maxLength": 3, "title": "é"}',
    "template": _TEMPLATE,
    "prompt": "Say é.\nThen 漢.",
    "settings": 'system-prompt = "é"\n[run]\nn-predict = 2\n',
    "keys": "# é\nabcdefghijklmnopqrstuvwxyz\n",
    "prompts": '{"prompt": "é"}\n{"prompt": "漢", "kind": "b"}\n',
    "report": json.dumps(_REPORT, ensure_ascii=False),
    "conversation": json.dumps(_CONVERSATION, ensure_ascii=False),
    "markdown": "# é\n\n**You**\n\nwhy?\n\n<!-- {} -->\n",
    "attached": "é, 漢, 😀\n",
    "record": "the record of the toy, changed",
    "choices": '{"theme": "é"}',
    "shell": "export É=1\n",
    "token": "hf_é",
    "studio": '{"downloadsFolder": "/é"}',
    "manifest": '{"config": {"digest": "sha256:é"}, "layers": []}',
    "model": "GGUF é",
    "store": "SQLite format 3é",
    "speed": '{"é": 1}',
    "servers": '{"mcpServers": {"é": {"command": "x"}}}',
    "shared": '{"format": "é"}',
    "branch": "0123456789abcdef0123456789abcdef01234567",
}


def _half(text: str) -> bytes:
    return text.encode()[: max(1, len(text.encode()) // 2)]


def _cesu(text: str) -> bytes:
    return text.encode("utf-16", "surrogatepass").decode("utf-16").encode("utf-8") + b"\xed\xa0\xbd"


ENCODINGS: dict[str, Callable[[str], bytes]] = {
    **{
        name: lambda text, name=name: text.encode(name, "replace")  # type: ignore[misc]
        for name in (
            *("utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le"),
            *("utf-32-be", "utf-7", "latin-1", "cp1252", "cp437", "cp037", "shift_jis", "gb18030"),
            *("koi8-r", "big5", "euc_kr", "iso2022_jp", "mac_roman", "utf-8", "utf-8-sig"),
        )
    },
    "utf-16 of the other kind": lambda text: codecs.BOM_UTF16_BE + text.encode("utf-16-be"),
    "utf-32 of the other kind": lambda text: codecs.BOM_UTF32_BE + text.encode("utf-32-be"),
    "two marks": lambda text: codecs.BOM_UTF8 * 2 + text.encode(),
    "a mark alone": lambda _text: codecs.BOM_UTF8,
    "a wide mark alone": lambda _text: codecs.BOM_UTF16_LE,
    "a wide mark and a byte": lambda _text: codecs.BOM_UTF16_LE + b"a",
    "a widest mark alone": lambda _text: codecs.BOM_UTF32_LE,
    "the mark of UTF-1 and of SCSU": lambda text: b"\xf7\x64\x4c\x0e\xfe\xff" + text.encode(),
    "a mark within": lambda text: (text[:9] + "\ufeff" + text[9:]).encode(),
    "empty": lambda _text: b"",
    "blanks": lambda _text: b" \t\r\n\xc2\xa0",
    "zero bytes": lambda text: text.encode() + bytes(9),
    "zero bytes first": lambda text: bytes(9) + text.encode(),
    "zero bytes between": lambda text: text.encode().replace(b"e", b"\0e"),
    "half": _half,
    "half a character": lambda text: text.encode() + b"\xf0\x9f",
    "halves of pairs": _cesu,
    "too long spelling": lambda text: text.encode().replace(b"e", b"\xc1\xa5"),
    "old Mac's lines": lambda text: text.replace("\n", "\r").encode(),
    "DOS's lines and end": lambda text: text.replace("\n", "\r\n").encode() + b"\x1a",
    "lines of Unicode": lambda text: text.replace("\n", "\u2028").replace(" ", "\x85").encode(),
    "escapes": lambda text: text.encode() + b"\x1b[2J\x1b]0;owned\x07\xe2\x80\xae",
    "packed": lambda text: gzip.compress(text.encode()),
    "any bytes": lambda text: random.Random(text).randbytes(3000),
    "a long line": lambda text: text.encode() + b"x" * 200_000,
    "two encodings": lambda text: text.encode() + text.encode("utf-16"),
}


@dataclass(frozen=True, slots=True)
class OddFile:
    """A file of one kind in one encoding."""

    kind: str
    encoding: str

    @property
    def content(self) -> bytes:
        """Its bytes."""
        return ENCODINGS[self.encoding](TEXTS[self.kind])


def cases(seed: int, count: int) -> Iterator[OddFile]:
    """Draw `count` cases; none is drawn again before all others were."""
    rng = random.Random(seed)
    every = [OddFile(kind, encoding) for kind in TEXTS for encoding in ENCODINGS]
    while count > 0:
        yield from rng.sample(every, min(count, len(every)))
        count -= len(every)


def attack(seed: int, count: int, folder: Path) -> list[str]:
    """Try `count` in an empty folder; what went wrong, a line each."""
    found = []
    for number, one in enumerate(cases(seed, count)):
        place = folder / str(number)
        place.mkdir()
        with _here(place):
            done = _OPENED.get(one.kind, _in_hand)(one, place)
        if wrong := _wrong(done):
            found.append(f"{one}: {wrong}")
    return found


def _wrong(done: Outcome) -> str:
    done = replace(done, out="")  # an answer may be anything
    return done.wrongly_said if done.code == 0 else done.wrong


@contextmanager
def _here(folder: Path) -> Iterator[None]:
    """The toy, and a home of one's own, in `folder`."""
    toy.install(folder / "DATA")
    home = {"OLLAMA_MODELS": str(folder / "ollama"), "SHELL": "/bin/bash"}
    with (
        nowhere(folder),
        mock.patch.dict("os.environ", home),
        mock.patch.object(constants, "HF_TOKEN_PATH", str(folder / "token")),
    ):
        yield


def _written(path: Path, one: OddFile) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(one.content)
    return path


def _in_hand(one: OddFile, folder: Path) -> Outcome:
    """A file that one function reads, without a command around it."""
    path = _written(folder / "file", one)
    reads: dict[str, Callable[[Path], object]] = {
        "prompts": prompt_sets.read,
        "conversation": read_file,
        "markdown": read_file,
        "attached": attached,
        "shared": lambda path: read_shared(path.read_bytes()),
        "report": lambda path: comparison.compare(comparison.load(path), comparison.load(path)),
    }
    try:
        reads[one.kind](path)
    except LocalspecError as error:
        return Outcome(exit_code(error), "", f"error: {': '.join(in_words(error))}")
    return Outcome(0, "", "")


def _option(name: str) -> Callable[[OddFile, Path], Outcome]:
    def opened(one: OddFile, folder: Path) -> Outcome:
        return run(["run", "toy", *_SHORT, name, str(_written(folder / "file", one))])

    return opened


def _keys(one: OddFile, folder: Path) -> Outcome:
    path = _written(folder / "keys", one)
    return run(["serve", "missing.gguf", "--port", "0", "--api-key-file", str(path)])


def _prompt(one: OddFile, folder: Path) -> Outcome:
    """Standard input."""
    with _written(folder / "file", one).open("rb") as file:
        return run(["run", "toy", *_SHORT[2:]], file)


def _stored(name: str, *words: str) -> Callable[[OddFile, Path], Outcome]:
    """A file at a place that commands look at."""

    def opened(one: OddFile, folder: Path) -> Outcome:
        _written(folder / name, one)
        return run([*words])

    return opened


def _record(one: OddFile, folder: Path) -> Outcome:
    """The toy's record."""
    path = folder / "DATA" / "pairs" / "toy.json"
    text = path.read_text("utf-8").replace("Apache-2.0", "é")
    path.write_bytes(ENCODINGS[one.encoding](text))
    listed = run(["list", "--no-scan"])
    return Outcome(listed.code, "", _wrong(listed)) if _wrong(listed) else run(["show", "toy"])


def _speed(one: OddFile, folder: Path) -> Outcome:
    """What was measured of this machine."""
    _written(folder / "CACHE" / "speed.json", one)
    with mock.patch.dict("os.environ", {"LOCALSPEC_CACHE": str(folder / "CACHE")}):
        return run(["list", "--no-scan"])


_ANSWER = ("run", "toy", *_SHORT)
_OPENED: dict[str, Callable[[OddFile, Path], Outcome]] = {
    "grammar": _option("--grammar-file"),
    "schema": _option("--json-schema-file"),
    "template": _option("--chat-template"),
    "keys": _keys,
    "prompt": _prompt,
    "settings": _stored(f"CONFIG/{FILE}", *_ANSWER),
    "record": _record,
    "choices": _stored("DATA/last-pair.json", "run", *_SHORT),
    "shell": _stored(".bashrc", "--install-completion", "bash"),
    "token": _stored("token", "pull", "a/b"),
    "studio": _stored(".lmstudio/settings.json", "list"),
    "manifest": _stored("ollama/manifests/registry.ollama.ai/library/a/b", "list"),
    "model": _stored("m.gguf", "run", "m.gguf", *_SHORT),
    "servers": _stored("CONFIG/mcp.json", "run", "toy", *_SHORT, "--mcp", "x"),
    "branch": _stored("hub/models--a--b/refs/main", "show", "a/b"),
    "store": _stored("DATA/conversations.db", "logs"),
    "speed": _speed,
}
