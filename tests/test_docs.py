"""The documents are true: links lead somewhere, commands exist, nothing private stands in them."""

from __future__ import annotations

import inspect
import re
import tomllib
from itertools import chain
from pathlib import Path

import pytest
from mcp.client import stdio

from localspec.cli.subcommands import COMMANDS
from localspec.pairs.disk import starter

ROOT = Path(__file__).parent.parent
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("models/*.md")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_relative_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)", page.read_text(encoding="utf-8"))
    dead = [
        link
        for link in links
        if not link.startswith(("http://", "https://")) and not (page.parent / link).exists()
    ]
    assert not dead


@pytest.mark.parametrize("page", ["ARCHITECTURE.md", "CONTRIBUTING.md"])
def test_every_file_and_room_that_is_named_is_there(page: str) -> None:
    names = re.findall(r"`([\w./-]+(?:\.py|/))[`:]", (ROOT / page).read_text(encoding="utf-8"))
    assert names
    package = ROOT / "localspec"
    gone = [
        name
        for name in names
        if not (ROOT / name).exists()
        and not (package / name).exists()
        # A name alone is one of the room that the text is about.
        and not ("/" not in name.rstrip("/") and any(package.rglob(name.rstrip("/"))))
    ]
    assert gone == []


@pytest.mark.parametrize(("page", "lines"), [("README.md", 120), ("docs/chat.md", 140)])
def test_the_first_pages_stay_short(page: str, lines: int) -> None:
    assert len((ROOT / page).read_text(encoding="utf-8").splitlines()) <= lines


def test_a_failed_build_says_the_line_that_the_documents_say() -> None:
    """The build backend formats the message with `str.format`: a brace would end it."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["uv"]
    message = settings["config-settings-package"]["llama-cpp-python"]["messages.after-failure"]
    assert message.format() == message
    lines = [line.strip() for line in message.splitlines() if line.endswith("localspec chat")]
    assert lines
    for line in lines:
        assert line in (ROOT / "README.md").read_text(encoding="utf-8")
        assert line in (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
        named = re.findall(r"\$PWD/([\w./-]+)", line)
        assert all((ROOT / name).is_file() for name in named)


def test_every_class_and_function_that_the_map_names_is_there() -> None:
    """As `path.py: name`, as `Class`, or as `Class.member`."""
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    package = ROOT / "localspec"
    there = {path: _defined(path.read_text(encoding="utf-8")) for path in package.rglob("*.py")}
    told = re.findall(r"`([\w/]+\.py): (\w+)`", text)
    gone = [each for each in told if each[1] not in there[package / each[0]]]
    classes = re.findall(r"`([A-Z][a-z]\w*)(?:\.(\w+))?`", text)
    for name, member in classes:
        homes = [names for names in there.values() if name in names]
        if not homes or (member and not any(member in names for names in homes)):
            gone.append((name, member))
    assert len(told) > 5
    assert len(classes) > 10
    assert gone == []


def _defined(source: str) -> set[str]:
    return {*re.findall(r"^ *(?:(?:async )?def |class )?(\w+) *[(:=]", source, re.M)}


def test_the_readme_names_every_command() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    missing = [name for name in COMMANDS if f"`localspec {name}" not in text]
    assert not missing
    assert "uv run localspec chat" in text
    assert "uv run pytest" in text


def test_the_wheel_carries_what_the_package_reads() -> None:
    shipped = re.findall(r'^"(models/[^"]+)" = "localspec/data/', _pyproject(), re.MULTILINE)
    head = f"models/{starter.HEAD}"
    assert {*shipped} == {"models/catalogue.toml", "models/curves.toml", head}
    assert all((ROOT / name).exists() for name in shipped)


def _pyproject() -> str:
    return (ROOT / "pyproject.toml").read_text(encoding="utf-8")


# The modules that start processes, and the programs that are not localspec's own.
PROGRAMS: dict[str, tuple[str, ...]] = {
    "chat/prompt/renderer.py": (),
    "cli/shell_completion.py": ("bash",),  # click starts it
    "cli/utf8_mode.py": (),
    "doctor/facts.py": ("sysctl", "pmset"),
    "machine.py": ("uname",),  # Python starts it
    "process/spawning.py": (),
    "tools/servers/child_transport.py": (),
    "train/keep_awake.py": ("caffeinate", "systemd-inhibit", "tail"),
    "ui/input/clipboard.py": ("pbcopy", "wl-copy", "xclip", "xsel"),
}
STARTS = (
    r"subprocess\.(run|Popen|call|check_\w+)\(|create_subprocess_\w+\(|os\.exec\w+\("
    r"|platform\.processor\(|get_completion_class\("
)


def test_security_names_every_program_that_may_run_and_what_servers_are_told() -> None:
    package = ROOT / "localspec"
    sources = {
        path.relative_to(package).as_posix(): path.read_text(encoding="utf-8")
        for path in package.rglob("*.py")
    }
    assert {name for name, source in sources.items() if re.search(STARTS, source)} == {*PROGRAMS}
    passed_on = re.search(
        r"^DEFAULT_INHERITED_ENV_VARS = \($(.*?)^\)$", inspect.getsource(stdio), re.M | re.S
    )
    assert passed_on
    names = {*chain.from_iterable(PROGRAMS.values()), *re.findall('"([A-Z_]+)"', passed_on[1])}
    text = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    section = text.partition("\n## Which programs run\n")[2].partition("\n## ")[0]
    assert {name for name in names if f"`{name}`" not in section} == set()


def test_the_table_of_evidence_has_what_other_pages_say_was_tried() -> None:
    pages = {page.name: page.read_text(encoding="utf-8") for page in (ROOT / "docs").rglob("*.md")}
    clients = re.search(r"Tried here: (.*?);", pages["serve.md"], re.S)
    assert clients
    tried = re.findall(r"`\w+`|[A-Z][A-Za-z ]+ [\d.]+", clients[1])
    assert len(tried) == 3
    tried += {
        name for text in pages.values() for name in re.findall(r"Qwen2\.5-Coder-[\d.]+B", text)
    }
    assert [name for name in tried if name not in pages["evidence.md"]] == []
