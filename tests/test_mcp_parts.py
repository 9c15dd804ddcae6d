"""Tools of MCP servers, without a server: settings, definitions, permissions, offers, prompts."""

from __future__ import annotations

import errno
import io
import json
import os
import stat
import sys
import threading
import time
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, NoReturn

import msgspec
import pytest
from msgspec import structs

from localspec import private
from localspec.chat.conversation import Message, Role, tool_result
from localspec.chat.dialects import Dialect
from localspec.chat.dialects.shapes import HERMES, AnswerMarks
from localspec.chat.prompt.tool_prompt import ToolPrompt
from localspec.engine.grammars.grammar_reader import require_grammar
from localspec.engine.record.stats import FinishReason
from localspec.errors import LocalspecError, UsageError, exit_code
from localspec.process import spawning
from localspec.safe_text import without_middle
from localspec.tools.permissions import Permissions
from localspec.tools.server_settings import ServerSettings, ServersFile, added
from localspec.tools.tool_definitions import MOST_TOOLS, ToolDefinition, checked, difference
from localspec.tools.tool_offer import RunnableCall, ToolOffer
from localspec.tools.tool_process import ToolProcess

FILES = ServerSettings(command="files", args=("/tmp",), env={"TOKEN": "${TOKEN}"})
READ = ToolDefinition("files", "read", description="Reads a file. Nothing else.")
SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}}


# The file


def test_a_server_is_added_switched_and_removed_and_the_rest_of_the_file_stays(
    tmp_path: Path,
) -> None:
    path = tmp_path / "mcp.json"
    other = {"command": "x", "autoApprove": ["all"], "disabled": True}
    path.write_text(json.dumps({"mcpServers": {"theirs": other}, "theme": 1}))
    path.chmod(0o644)
    file = ServersFile(path)
    file.put(*added("files TOKEN=${TOKEN} files '/home/me/my notes'"))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    file.switch("theirs", disabled=False, disabledTools=["rm"])
    found = file.servers()
    assert found["files"].args == ("/home/me/my notes",)
    assert found["files"].env == {"TOKEN": "${TOKEN}"}
    assert found["theirs"].disabled_tools == ("rm",)
    document = json.loads(path.read_text())
    assert document["theme"] == 1
    assert document["mcpServers"]["theirs"]["autoApprove"] == ["all"]
    file.remove("files")
    assert list(file.servers()) == ["theirs"]


def test_a_file_that_others_can_read_is_closed_when_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "mcp.json"
    path.write_text("{}")
    path.chmod(0o644)
    assert ServersFile(path).servers() == {}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_file_that_can_only_be_read_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is on a read-only mount, or a link into a store."""

    def refuse(*_: object, **__: object) -> NoReturn:
        raise PermissionError(errno.EACCES, "Permission denied")

    path = tmp_path / "mcp.json"
    ServersFile(path).put("files", FILES)
    path.chmod(0o444)
    with monkeypatch.context() as patched:
        for name in ("open", "utime", "chmod"):
            patched.setattr(os, name, refuse)
        found = ServersFile(path).servers()
    assert found == {"files": FILES}


def test_a_wrong_entry_hides_no_other_and_a_damaged_file_stays(tmp_path: Path) -> None:
    path = tmp_path / "mcp.json"
    entries: dict[str, Any] = {
        "both": {"command": "a", "url": "http://b"},
        "neither": {},
        "kind": {"command": 5},
        "slow": {"command": "a", "timeout": 60_000},
        "a\nb": {"command": "a"},
        "good": {"command": "a"},
    }
    path.write_text(json.dumps({"mcpServers": entries}))
    file = ServersFile(path)
    assert list(file.servers()) == ["good"]
    assert len(file.problems) == 5
    for damaged in ("{", "[]", '{"mcpServers": []}'):
        path.write_text(damaged)
        with pytest.raises(UsageError):
            file.put("x", FILES)
        assert path.read_text() == damaged


@pytest.mark.parametrize(
    "words",
    ["files", "fi.les x", "x http://", "x http://a b", "x file:///etc", "x 'y", f"{'a' * 33} x"],
)
def test_what_is_no_server_is_refused(words: str) -> None:
    with pytest.raises(UsageError):
        added(words)


def test_variables_are_expanded_for_the_start_alone() -> None:
    given = ServerSettings(
        command="run", args=("${A}-${env:A}", "${B:-none}", "$A"), headers={"K": "Bearer ${A}"}
    )
    found = given.expanded("x", {"A": "1"})
    assert found.args == ("1-1", "none", "$A")
    assert found.headers == {"K": "Bearer 1"}
    assert "${A}-${env:A}" in given.shown
    with pytest.raises(UsageError, match="environment variable A"):
        given.expanded("x", {})
    with pytest.raises(UsageError, match="URL") as caught:
        ServerSettings(url="${A}").expanded("x", {"A": "file:///etc/secret"})
    assert "secret" not in str(caught.value)


def test_the_line_end_of_a_file_is_no_part_of_a_header() -> None:
    given = ServerSettings(url="http://a.example", headers={"K": "Bearer ${A}"})
    assert given.expanded("x", {"A": "1\r\n"}).headers == {"K": "Bearer 1"}


@pytest.mark.parametrize(
    ("name", "value"),
    [("K", "secr\xe9t"), ("K", "secret\nX: y"), ("K", "\x1b[200~secret"), ("K ", "")],
)
def test_a_header_that_cannot_be_sent_is_named_and_its_value_not_shown(
    name: str, value: str
) -> None:
    given = ServerSettings(url="http://a.example", headers={name: "${A}"})
    with pytest.raises(
        UsageError, match="the server x has a header that cannot be sent: K"
    ) as told:
        given.expanded("x", {"A": value})
    assert "secr" not in str(told.value)


# Definitions


def test_tools_are_made_safe_and_what_cannot_be_used_is_left_out() -> None:
    deep: dict[str, Any] = {}
    for _ in range(40):
        deep = {"a": deep}
    offered = [
        {"name": "good", "description": "a\x1b[2Jb", "parameters": {"a\x1b": ["\u202e"]}},
        {"name": "good"},
        {"name": "a\nb"},
        {"name": "a\u3164"},
        {"name": ""},
        {"name": "deep", "parameters": deep},
        {"name": "large", "parameters": {"a": "b" * 100_000}},
        {"name": "number", "parameters": {"a": 1 << 70}},
        {"name": "a\x1b", "fault": " "},
    ]
    found, problems = checked("s", offered)
    assert [tool.name for tool in found] == ["good"]
    assert "\x1b" not in json.dumps([found[0].description, found[0].parameters])
    assert len(problems) == 4  # a hostile server does not fill the screen
    many, said = checked("s", [{"name": f"t{i}"} for i in range(MOST_TOOLS + 9)])
    assert len(many) == MOST_TOOLS
    assert said


def test_characters_that_are_not_seen_are_shown_in_definitions() -> None:
    hidden = "x\U000e0041\u200b\u2060\u200f\xad\u034f\u1160\u180b\u206a\u3164\ufe00\ufffa\U0001d173"
    offered = {
        "name": "a",
        "title": hidden,
        "description": f"{hidden} می\u200cخواهم 👩\u200d💻 ❤\ufe0f",
        "parameters": {hidden: [hidden]},
        "annotations": {"title": hidden},
    }
    ((tool,), _) = checked("s", [offered])
    shown = "x".ljust(len(hidden), "\ufffd")
    assert tool.title == shown
    assert tool.description == f"{shown} می\u200cخواهم 👩\u200d💻 ❤\ufe0f"
    assert tool.parameters == {shown: [shown]}
    assert tool.annotations == {"title": shown}


# Permissions


@pytest.mark.parametrize(
    "change",
    [
        {"command": "other"},
        {"args": ("/etc",)},
        {"env": {"OTHER": "1"}},
        {"cwd": "/"},
        {"headers": {"A": "b"}},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_yes_is_bound_to_the_server(tmp_path: Path, change: dict[str, Any]) -> None:
    known = Permissions(tmp_path / "yes.json")
    known.allow(FILES, READ)
    assert known.allowed(FILES, READ)
    now = structs.replace(FILES, **change)
    assert not known.allowed(now, READ)
    assert known.changes(now, READ)


@pytest.mark.parametrize(
    "change",
    [
        {"title": "Read"},
        {"description": "Reads a file. Sends it away."},
        {"parameters": SCHEMA},
        {"output": SCHEMA},
        {"annotations": {"readOnlyHint": True}},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_yes_is_bound_to_the_definition_and_the_difference_is_shown(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    path = tmp_path / "yes.json"
    Permissions(path).allow(FILES, READ)
    known, now = Permissions(path), structs.replace(READ, **change)
    assert known.allowed(FILES, READ)
    assert known.changes(FILES, READ) == ""
    assert not known.allowed(FILES, now)
    said = known.changes(FILES, now)
    assert f'"{next(iter(change))}":' in said
    assert "\n+ " in f"\n{said}"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("before", "now"),
    [
        (1, True),
        (0, False),
        (1, 1.0),
        (None, "null"),
        ({}, []),
        ({}, {"a": None}),
        ([1, 2], [2, 1]),
    ],
)
def test_a_yes_is_bound_to_every_value_of_a_schema(
    tmp_path: Path, before: object, now: object
) -> None:
    known = Permissions(tmp_path / "yes.json")
    old, new = (
        structs.replace(READ, parameters={"a": [{"b": one}], "c": 1}) for one in (before, now)
    )
    known.allow(FILES, old)
    assert known.allowed(FILES, structs.replace(old, parameters={"c": 1, "a": [{"b": before}]}))
    assert not known.allowed(FILES, new)
    assert known.changes(FILES, new)


def test_a_difference_tells_where_it_is() -> None:
    before = {"title": "", "a": {"x": [1, 1], "y": "s"}, "same": {"z": [1]}}
    now = {"title": "Read", "a": {"x": [1, 2, {"b": 3}]}, "same": {"z": [1]}, "new": {}}
    assert difference(before, now).splitlines() == [
        '- "title": ""',
        '+ "title": "Read"',
        '  "a":',
        '   "x":',
        "-   1: 1",
        "+   1: 2",
        '+   2: {"b": 3}',
        '-  "y": "s"',
        '+ "new": {}',
    ]


def test_the_difference_of_large_schemas_is_found_at_once() -> None:
    random = Random(1)
    old, new = ({"enum": [random.randrange(120) for _ in range(60_000)]} for _ in range(2))
    tools, problems = checked("s", [{"name": "a", "parameters": old}])
    assert tools
    assert not problems
    begun = time.monotonic()
    assert difference({"parameters": old}, {"parameters": new})
    assert time.monotonic() - begun < 10


def test_a_yes_is_bound_to_the_folder_and_to_what_variables_stand_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = Permissions(tmp_path / "yes.json")
    notes, work = tmp_path / "notes", tmp_path / "work"
    for folder in (work, notes):
        folder.mkdir()
        monkeypatch.chdir(folder)
    known.allow(FILES, READ)
    monkeypatch.chdir(work)
    assert not known.allowed(FILES, READ)
    assert str(work) in known.changes(FILES, READ)
    known.allow(FILES, READ)
    monkeypatch.chdir(notes)
    assert known.allowed(FILES, READ)  # both stay
    named = structs.replace(FILES, args=("${PROJECT}", "${OTHER:-x}"))
    monkeypatch.setenv("PROJECT", "secret")
    known.allow(named, READ)
    assert known.allowed(named, READ)
    assert "secret" not in (tmp_path / "yes.json").read_text()
    monkeypatch.setenv("PROJECT", "another")
    assert not known.allowed(named, READ)
    known.forget(READ.server)
    assert not known.changes(FILES, READ)


def test_a_yes_tells_values_with_quotes_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = Permissions(tmp_path / "yes.json")
    named = structs.replace(FILES, args=("${FIRST}", "${SECOND}"))
    monkeypatch.setenv("FIRST", 'a", "b')
    monkeypatch.setenv("SECOND", "c")
    known.allow(named, READ)
    assert known.allowed(named, READ)
    monkeypatch.setenv("FIRST", "a")
    monkeypatch.setenv("SECOND", 'b", "c')
    assert not known.allowed(named, READ)


@pytest.mark.skipif(os.name == "nt", reason="a variable is text there, and a folder in use stays")
def test_a_yes_is_bound_to_a_variable_of_bytes_and_to_a_folder_that_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = Permissions(tmp_path / "yes.json")
    named = structs.replace(FILES, args=("${PROJECT}",))
    monkeypatch.setenv("PROJECT", "work")
    known.allow(named, READ)
    monkeypatch.setenv("PROJECT", os.fsdecode(b"\xe9"))
    assert not known.allowed(named, READ)
    with pytest.raises(UsageError, match="not UTF-8"):
        named.expanded("files", os.environ)
    known.allow(FILES, READ)
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert not known.allowed(FILES, READ)


def test_no_yes_without_one(tmp_path: Path) -> None:
    path = tmp_path / "yes.json"
    known = Permissions(path)
    assert not known.allowed(FILES, READ)
    assert not known.changes(FILES, READ)
    path.write_text("yes to all")
    assert not known.allowed(FILES, READ)
    known.allow(FILES, READ)
    assert not known.allowed(FILES, structs.replace(READ, name="write"))
    assert not known.allowed(FILES, structs.replace(READ, server="other"))
    known.forget("files")
    assert not known.allowed(FILES, READ)


def test_where_the_file_cannot_be_read_no_yes_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def busy(*_: object) -> NoReturn:
        raise OSError(errno.EMFILE, "Too many open files")

    path = tmp_path / "yes.json"
    known = Permissions(path)
    known.allow(FILES, READ)
    write = structs.replace(READ, name="write")
    with monkeypatch.context() as patched:
        patched.setattr(Path, "read_bytes", busy)
        with pytest.raises(OSError, match="Too many open files"):
            known.allow(FILES, write)
        with pytest.raises(UsageError, match="cannot be changed: Too many open files"):
            known.forget("other")
    assert known.allowed(FILES, READ)
    damaged = path.read_text().replace(",", "", 1)
    path.write_text(damaged)
    known.allow(FILES, write)
    assert [one.read_text() for one in tmp_path.glob("yes.json.damaged-*")] == [damaged]
    assert known.allowed(FILES, write)


def test_a_full_disk_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> NoReturn:
        raise OSError(errno.ENOSPC, "No space left on device")

    known = Permissions(tmp_path / "yes.json")
    known.allow(FILES, READ)
    monkeypatch.setattr(private, "write_json", full)
    monkeypatch.setattr(spawning, "engine", full)
    with pytest.raises(UsageError, match="cannot be changed: No space"):
        known.forget("files")
    with pytest.raises(LocalspecError, match="cannot be started") as failed:
        ToolProcess(print)
    assert exit_code(failed.value) == 1


def test_a_path_of_windows_keeps_its_backslashes(monkeypatch: pytest.MonkeyPatch) -> None:
    words = r'files "C:\my tools\server.exe" C:\notes'
    monkeypatch.setattr(sys, "platform", "win32")
    assert added(words)[1] == ServerSettings(command=r"C:\my tools\server.exe", args=(r"C:\notes",))
    shown = added(r"files 'C:\my tools\server.exe' C:\notes")[1]
    assert (shown.command, shown.args) == (r"C:\my tools\server.exe", (r"C:\notes",))
    monkeypatch.setattr(sys, "platform", "linux")
    assert added("files server C:\\notes")[1].args == ("C:notes",)


# Offers


def test_every_tool_has_a_name_that_models_can_write_and_no_other_has() -> None:
    tools = [
        READ,
        structs.replace(READ, name="a.b"),
        structs.replace(READ, name="a_b"),
        structs.replace(READ, name="x" * 100),
        structs.replace(READ, name="x" * 99 + "y"),
        structs.replace(READ, name="x" * 99 + "é"),
    ]
    names = {tool.name: name for name, tool in ToolOffer(tools).tools.items()}
    assert len(names) == len(tools)
    assert names["read"] == "files__read"
    assert all(len(name) <= 64 and name.isascii() for name in names.values())
    turned = ToolOffer([*reversed(tools)])
    assert {tool.name: name for name, tool in turned.tools.items()} == names


def test_tools_of_one_name_on_two_servers_are_two_tools() -> None:
    """Also where the names of servers and tools meet in the middle."""
    tools = [
        READ,
        structs.replace(READ, server="notes"),
        ToolDefinition("a", "b__c"),
        ToolDefinition("a__b", "c"),
    ]
    offer = ToolOffer(tools)
    assert list(offer.tools)[:2] == ["files__read", "notes__read"]
    for name, tool in offer.tools.items():
        assert offer.meaning(name, {}) == RunnableCall(tool, "{}")
    assert {one.shown for one in offer.tools.values()} == {one.shown for one in tools}


def test_a_call_means_a_tool_or_an_answer() -> None:
    write = structs.replace(READ, name="write", description="Writes a file.", parameters=SCHEMA)
    offer = ToolOffer([READ, write])
    assert offer.meaning("files__read", {"a": 1}) == RunnableCall(READ, '{"a": 1}')
    unknown = offer.meaning("read\nx", {})
    assert isinstance(unknown, str)
    assert "files__read, files__write" in unknown
    assert "\n" not in unknown
    found = offer.meaning("find_tools", {"query": "write something"})
    assert found == "files__write: Writes a file."
    thai = structs.replace(READ, name="eat", description="กินข้าว")
    other = structs.replace(READ, description="ไม่มีอะไร กาแฟ น")
    found = ToolOffer([other, thai]).meaning("find_tools", {"query": "กิน"})
    assert found == "files__eat: กินข้าว"
    described = offer.meaning("describe_tool", {"name": "files__write"})
    assert isinstance(described, str)
    assert json.loads(described)["function"]["parameters"] == SCHEMA
    inner = {"name": "files__write", "arguments": {"path": "x"}}
    assert offer.meaning("call_tool", inner) == RunnableCall(write, '{"path": "x"}')
    assert isinstance(offer.meaning("call_tool", {"name": "call_tool"}), str)


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ('{"path": "/a"}', '{"path": "/a"}'),
        (r'{"path": "\ud800"}', '{"path": "?"}'),
        (None, "{}"),
        ('{"path": "/a', None),
        ("/a", None),
        (["/a"], None),
        (5, None),
    ],
)
def test_arguments_of_a_found_tool_are_an_object_or_nothing_runs(
    given: object, meant: str | None
) -> None:
    found = ToolOffer([READ]).meaning("call_tool", {"name": "files__read", "arguments": given})
    if meant is None:
        assert found == "It was not run: `arguments` must be a JSON object."
    else:
        assert found == RunnableCall(READ, meant)


# The process that runs them


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> ToolProcess:
    """A process that has ended."""
    pipes = SimpleNamespace(stdin=io.BytesIO(), stdout=io.BytesIO(), kill=lambda: None)
    monkeypatch.setattr(spawning, "engine", lambda _: (pipes, io.BytesIO()))
    monkeypatch.setattr(ToolProcess, "_end_servers", lambda _: None)
    process = ToolProcess(lambda _: None)
    process._reader.join()
    return process


def test_a_call_after_the_end_of_the_process_fails_at_once(ended: ToolProcess) -> None:
    assert ended.call("s", "t", "{}", 30).result(1).failed


def test_a_call_that_cannot_be_encoded_leaves_nothing_behind(ended: ToolProcess) -> None:
    ended._ended = False
    threads = threading.active_count()
    with pytest.raises(UnicodeEncodeError):
        ended.call("s", "t", '{"a": "\ud800"}', 30)
    assert not ended._calls
    assert threading.active_count() == threads


# What the model reads


NATIVE = Dialect(
    known=True,
    marks=AnswerMarks(calls=(HERMES,), explained=True, several=True, writes=True),
)
TOOLS = ToolOffer([READ]).described
CALLED = 'Let me see.\n<tool_call>\n{"name": "files__read", "arguments": {"a": 1}}\n</tool_call>'
TALK = [
    Message(Role.USER, "What is in it?"),
    Message(Role.ASSISTANT, CALLED, FinishReason.STOP),
    tool_result("a\nb", "files__read", '{"a": 1}'),
    Message(Role.ASSISTANT, "Two lines.", FinishReason.STOP),
]


def test_calls_and_results_are_told_as_the_template_has_them() -> None:
    _, answer, result, last = ToolPrompt(NATIVE, TOOLS).told(TALK)
    assert answer.content == "Let me see."
    (call,) = answer.more["tool_calls"]
    assert call["function"] == {"name": "files__read", "arguments": {"a": 1}}
    assert result.more["role"] == "tool"
    assert result.more["tool_call_id"] == call["id"]
    assert result.content == "a\nb"
    assert last == Message(Role.ASSISTANT, "Two lines.", FinishReason.STOP)


ODD: tuple[dict[str, Any], ...] = (
    {"enum": 5},
    {"$ref": 5},
    {"anyOf": 5},
    {"type": "array", "minItems": 5, "maxItems": 2},
    {"type": "array", "minItems": True},
    {"type": "array", "maxItems": 0},  # this and the next are not odd
    {"type": "array", "maxItems": 1},
    {"enum": [{"a": 1, "b": 2}]},
)


@pytest.mark.parametrize("style", ["json", "python", "gemma", "nested"])
@pytest.mark.parametrize("schema", ODD, ids=json.dumps)
def test_an_odd_schema_spoils_no_grammar(style: str, schema: dict[str, Any]) -> None:
    marks = structs.replace(NATIVE.marks, calls=(structs.replace(HERMES, style=style),))
    odd = structs.replace(READ, parameters={"type": "object", "properties": {"a": schema}})
    grammar, _ = ToolPrompt(Dialect(marks=marks), ToolOffer([odd]).described).grammar()
    assert grammar
    require_grammar(grammar)


def test_a_call_without_marks_is_told_once() -> None:
    bare = '```json\n{"name": "files__read", "arguments": {"a": 1}}\n```'
    said = [TALK[0], Message(Role.ASSISTANT, bare, FinishReason.STOP), TALK[2]]
    _, answer, _ = ToolPrompt(NATIVE, TOOLS).told(said)
    assert answer.content == ""
    assert len(answer.more["tool_calls"]) == 1


def test_half_a_letter_in_a_call_can_be_sent_to_another_process() -> None:
    bare = '{"name": "files__read", "arguments": {"a": ["\\ud800"]}}'
    (call,) = NATIVE.calls(bare, TOOLS)
    result = tool_result("x", *call.texts())
    assert msgspec.msgpack.encode(result)
    assert result.more["arguments"] == '{"a": ["?"]}'


def test_a_model_without_tools_reads_them_in_the_notation_of_hermes() -> None:
    prompt = ToolPrompt(Dialect(), TOOLS)
    _, answer, result, _ = prompt.told(TALK)
    assert '"name": "files__read", "arguments": {"a": 1}' in answer.content
    assert result == Message(Role.USER, "<tool_response>\na\nb\n</tool_response>")
    assert "files__read" in prompt.explained("Be brief.")
    assert prompt.explained("Be brief.").startswith("Be brief.")
    assert not prompt.variables


def test_a_template_that_refuses_several_calls_gets_one_at_a_time() -> None:
    one = Dialect(marks=structs.replace(NATIVE.marks, several=False))
    talk = [*TALK[:3], tool_result("c", "files__read", "{}")]
    roles = [m.more.get("role", m.role.value) for m in ToolPrompt(one, TOOLS).told(talk)]
    assert roles == ["user", "assistant", "tool", "assistant", "tool"]


def test_calls_that_a_template_counts_have_numbers_for_ids() -> None:
    counted = Dialect(marks=structs.replace(NATIVE.marks, numbered="conversation"))
    told = ToolPrompt(counted, TOOLS).told([*TALK[:3], *TALK[1:3]])
    calls = [call["id"] for one in told for call in one.more.get("tool_calls", ())]
    assert calls == ["functions.files__read:0", "functions.files__read:1"]
    assert [one.more["tool_call_id"] for one in told if "tool_call_id" in one.more] == calls


def test_a_call_that_nothing_answered_is_text() -> None:
    told = ToolPrompt(NATIVE, TOOLS).told([*TALK[:2], Message(Role.USER, "Go on.")])
    assert told[1].content == CALLED
    assert not told[1].more


def test_results_whose_call_is_not_known_are_texts() -> None:
    lost = Message(Role.TOOL, "x")
    told = ToolPrompt(NATIVE).told([lost, TALK[0], lost, TALK[3], lost])
    assert [m.role for m in told if "tool_response" in m.content] == [Role.USER] * 3


def test_a_long_text_is_cut_in_the_middle_with_a_word() -> None:
    assert without_middle("abc", 3) == "abc"
    text = "a" * 6000 + "b" * 6000
    cut = without_middle(text, 1000)
    assert cut.startswith("a" * 750 + "\n[… 11,000 characters left out …]\n")
    assert cut.endswith("\n" + "b" * 250)
