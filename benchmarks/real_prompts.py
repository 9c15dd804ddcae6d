"""Questions of eight kinds for recordings of real models: files of the standard library, and talk.

Four kinds copy from what they were given (edit, fix, quote, convert), four hardly do (code, chat,
explain, summarise). `questions` draws them with a seed: the same interpreter gives the same ones.
"""

from __future__ import annotations

import ast
import json
import random
import sysconfig
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

COPYING = ("edit", "fix", "quote", "convert")
OTHERS = ("code", "chat", "explain", "summarise")
KINDS = (*COPYING, *OTHERS)

_MODULES = [
    "bisect",
    "calendar",
    "cmd",
    "colorsys",
    "configparser",
    "copy",
    "csv",
    "dataclasses",
    "difflib",
    "fnmatch",
    "fractions",
    "functools",
    "getopt",
    "glob",
    "gzip",
    "heapq",
    "linecache",
    "mimetypes",
    "netrc",
    "pprint",
    "queue",
    "random",
    "sched",
    "shelve",
    "shlex",
    "statistics",
    "string",
    "tabnanny",
    "textwrap",
    "threading",
    "tokenize",
    "trace",
    "types",
    "uuid",
    "weakref",
    "zipapp",
]


@dataclass(frozen=True, slots=True)
class Question:
    """One conversation: its kind, its language, and what the user says turn by turn."""

    kind: str
    language: str
    turns: tuple[str, ...]


def questions(each: int, seed: int = 0) -> list[Question]:
    """Draw `each` questions of every kind, kinds in turn, so that a shorter list is balanced."""
    luck = random.Random(seed)
    drawn = {kind: [_DRAW[kind](luck, at) for at in range(each)] for kind in KINDS}
    return [drawn[kind][at] for at in range(each) for kind in KINDS]


def _pieces(luck: random.Random, least: int, most: int) -> str:
    """A run of whole functions or classes of a module, of `least` to `most` lines."""
    while True:
        path = Path(sysconfig.get_paths()["stdlib"]) / f"{luck.choice(_MODULES)}.py"
        text = path.read_text("utf-8")
        lines = text.splitlines()
        blocks = [
            (node.lineno - 1, node.end_lineno or node.lineno)
            for node in ast.parse(text).body
            if isinstance(node, ast.FunctionDef | ast.ClassDef)
        ]
        for first in luck.sample(range(len(blocks)), len(blocks)):
            for last in range(first, len(blocks)):
                n = blocks[last][1] - blocks[first][0]
                if least <= n <= most:
                    return "\n".join(lines[blocks[first][0] : blocks[last][1]])


_EDITS = (
    "Rename the first parameter of every function to `subject` and give the whole file again.",
    "Add type hints to all functions and give the whole code again.",
    "Change all single-quoted strings to double quotes and give the whole code again.",
    "Remove all comments and docstrings and give the code again.",
    "Add a one-line docstring to every function that has none and give the whole code again.",
    "Ersetze alle %-Formatierungen durch f-Strings und gib den ganzen Code wieder aus.",
    "Mache aus jeder Funktion eine mit Schlüsselwortargumenten und gib alles wieder aus.",
    "请把所有变量名改成驼峰命名，并输出完整代码。",
)


def _edit(luck: random.Random, at: int) -> Question:
    code = _pieces(luck, 12, 45)
    turns = [f"{_EDITS[at % len(_EDITS)]}\n\n```python\n{code}\n```"]
    if at % 4 == 3:
        turns.append("Now also put `# checked` at the end of each line with a return.")
    return Question("edit", "de" if at % 8 in (5, 6) else "zh" if at % 8 == 7 else "en", (*turns,))


_BUGS: Sequence[tuple[str, str]] = (
    (" == ", " != "), ("return ", "retrun "), (" + 1", " - 1"), ("self.", "sefl."),
    (" not ", " "), (" < ", " > "), ("):\n", ")\n"), ("[0]", "[1]"),
)  # fmt: skip


def _fix(luck: random.Random, at: int) -> Question:
    while True:
        code = _pieces(luck, 12, 40)
        usable = [bug for bug in _BUGS if bug[0] in code]
        if usable:
            break
    right, wrong = usable[at % len(usable)]
    places = [i for i in range(len(code)) if code.startswith(right, i)]
    place = luck.choice(places)
    broken = code[:place] + wrong + code[place + len(right) :]
    asks = (
        "This code has one mistake. Find it, fix it, and give the corrected code.",
        "Please correct the bug and show the whole function again.",
        "In diesem Code ist ein Fehler. Behebe ihn und gib den Code wieder aus.",
        "Fix this code.",
    )
    language = "de" if at % 4 == 2 else "en"
    return Question("fix", language, (f"{asks[at % 4]}\n\n```python\n{broken}\n```",))


def _quote(luck: random.Random, at: int) -> Question:
    code = _pieces(luck, 30, 90)
    asks = (
        "Quote every comment in this code, one in a line, in the order of the code.",
        "List all function signatures in this code exactly as they stand there.",
        "Quote the lines that can raise an exception and say for each which one.",
        "Quote the docstring of each function word for word.",
        "Zitiere alle Zeilen, in denen etwas zurückgegeben wird.",
        "Which lines use `self`? Quote the first ten of them.",
        "Quote the longest function in this code.",
        "请逐字引用所有的 if 语句。",
    )
    language = "de" if at % 8 == 4 else "zh" if at % 8 == 7 else "en"
    return Question("quote", language, (f"{asks[at % 8]}\n\n```python\n{code}\n```",))


_NAMES = [
    "Ada",
    "Bo",
    "Chen",
    "Dana",
    "Emil",
    "Farah",
    "Goran",
    "Hana",
    "Ivo",
    "Jun",
    "Kofi",
    "Lea",
]
_TOWNS = ["Lisbon", "Graz", "Turku", "Osaka", "Quito", "Leeds", "Lyon", "Bern", "Cork", "Hue"]


def _rows(luck: random.Random, n: int) -> list[dict[str, object]]:
    return [
        {
            "id": luck.randint(100, 999),
            "name": luck.choice(_NAMES),
            "town": luck.choice(_TOWNS),
            "score": round(luck.uniform(1, 9), 1),
            "active": luck.random() < 0.5,
        }
        for _ in range(n)
    ]


def _csv(rows: Sequence[dict[str, object]]) -> str:
    return "\n".join([",".join(rows[0]), *(",".join(map(str, row.values())) for row in rows)])


def _convert(luck: random.Random, at: int) -> Question:
    rows = _rows(luck, luck.randint(6, 12))
    text = json.dumps(rows, indent=2)
    forms = (
        ("Convert this JSON to CSV.", text),
        ("Convert this CSV to JSON.", _csv(rows)),
        ("Make a Markdown table of this JSON.", text),
        ("Write this data as YAML.", text),
        ("Turn this CSV into SQL INSERT statements for a table `people`.", _csv(rows)),
        ("Sort this JSON by score and give it again.", text),
        ("Wandle dieses CSV in eine Markdown-Tabelle um.", _csv(rows)),
        ("把这个 CSV 转换成 JSON。", _csv(rows)),
    )
    ask, data = forms[at % len(forms)]
    language = "de" if at % 8 == 6 else "zh" if at % 8 == 7 else "en"
    return Question("convert", language, (f"{ask}\n\n```\n{data}\n```",))


def _listed(kind: str, asks: Sequence[tuple[str, ...]]) -> Callable[[random.Random, int], Question]:
    def draw(_luck: random.Random, at: int) -> Question:
        language, *turns = asks[at % len(asks)]
        return Question(kind, language, tuple(turns))

    return draw


_code = _listed(
    "code",
    (
        ("en", "Write a Python function that merges two sorted lists.", "Now with a generator."),
        ("en", "Write a Python class for a bounded queue with tests."),
        ("de", "Schreibe eine Python-Funktion, die römische Zahlen liest."),
        ("en", "Write a JavaScript function that debounces another one."),
        ("en", "Write SQL that finds customers without orders in 2024."),
        ("zh", "用 Python 写一个函数，判断一个字符串是否是回文。"),
        ("en", "Write a bash script that renames all .jpeg files to .jpg."),
        ("en", "Write a Python decorator that retries a function three times."),
        ("en", "Write a small Flask app with a list of notes that can be added and removed."),
        ("en", "Implement Dijkstra's algorithm in Python.", "Return the path as well."),
    ),
)
_chat = _listed(
    "chat",
    (
        ("en", "I can't sleep lately. What could I try?"),
        ("en", "Suggest a name for a black cat and say why.", "And for a white one?"),
        ("de", "Was kann man an einem Regentag mit Kindern machen?"),
        ("en", "Write a short poem about rivers."),
        ("zh", "给我介绍一下成都的美食。"),
        ("en", "Tell me a story about a dog that learns to read."),
        ("en", "How do I ask my boss for a raise?"),
        ("de", "Schreibe eine Einladung zu einem Sommerfest."),
        ("en", "What is a good way to learn the guitar?", "How long does that take?"),
        ("en", "Plan a weekend in Lisbon."),
    ),
)
_EXPLAIN = (
    "Explain what this code does, step by step.",
    "What are the weak points of this code?",
    "Erkläre diesen Code für Anfänger.",
    "Explain how this code handles errors.",
    "请解释这段代码的作用。",
)


def _explain(luck: random.Random, at: int) -> Question:
    ask = _EXPLAIN[at % len(_EXPLAIN)]
    language = ("en", "en", "de", "en", "zh")[at % len(_EXPLAIN)]
    code = _pieces(luck, 20, 60)
    return Question("explain", language, (f"{ask}\n\n```python\n{code}\n```",))


def _summarise(luck: random.Random, at: int) -> Question:
    asks = (
        "Summarise this module's documentation in five sentences.",
        "Fasse das in drei Sätzen zusammen.",
        "Give the main points of this text as a list.",
        "用中文总结这段文字。",
    )
    while True:
        path = Path(sysconfig.get_paths()["stdlib"]) / f"{luck.choice(_MODULES)}.py"
        found = ast.get_docstring(ast.parse(path.read_text("utf-8")))
        if found and 400 < len(found) < 4000:
            language = ("en", "de", "en", "zh")[at % 4]
            return Question("summarise", language, (f"{asks[at % 4]}\n\n{found}",))


_DRAW: dict[str, Callable[[random.Random, int], Question]] = {
    "edit": _edit,
    "fix": _fix,
    "quote": _quote,
    "convert": _convert,
    "code": _code,
    "chat": _chat,
    "explain": _explain,
    "summarise": _summarise,
}
