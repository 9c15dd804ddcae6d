"""`localspec --install-completion`: commands and options complete in the shell."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from click import Command
from click.shell_completion import ShellComplete, get_completion_class

from localspec import private
from localspec.errors import LocalspecError, UsageError
from localspec.pairs.disk.folders import config_folder, home

_PROGRAM = "localspec"
_OLDEST_BASH = (4, 4)
_STARTS = {"bash": (".bashrc",), "zsh": (".zshrc",)}
# In a terminal of macOS bash is a login shell, which reads the first of these alone.
_LOGIN = (".bash_profile", ".bash_login", ".profile")
# zsh knows `compdef` once its completion is on, which this file often has anyway.
_BEFORE = {
    "bash": "",
    "zsh": "(( $+functions[compdef] )) || { autoload -Uz compinit && compinit; }\n",
}


def install(shell: str, command: Command, variable: str) -> str:
    """Write the script that completes, and have the shell read it when it starts.

    Args:
        shell: its name; empty for the one in use.
        command: the command to complete.
        variable: of the environment, by which the shell will ask for completion.

    Returns:
        A sentence that tells what was done.

    Raises:
        UsageError: the shell is not known.
        LocalspecError: a file cannot be written, there is no home folder, or bash is too old.
    """
    shell = shell or Path(os.environ.get("SHELL", "")).name
    made = get_completion_class(shell)
    if made is None:
        name = shell or "this shell"
        raise UsageError(
            f"there is no completion for {name}", "Say --install-completion bash, zsh or fish."
        )
    if shell == "bash":
        _require_newer()
    # That of bash would also judge the first bash of PATH, which may not be the user's shell.
    source = ShellComplete.source(made(command, {}, _PROGRAM, variable))
    try:
        where = _fish(source) if shell == "fish" else _started(shell, source)
    except OSError as error:
        raise LocalspecError(
            f"the completion cannot be written: {error.strerror} ({error.filename})",
            "Make the home folder writable.",
        ) from None
    done = f"{shell} completes localspec from its next start on ({where})"
    return done if _found() else f"{done}, once localspec is on its PATH"


def _require_newer() -> None:
    """Refuse a bash that would print an error about the script at every start; macOS has one.

    Raises:
        LocalspecError: it is too old.
    """
    own = os.environ.get("SHELL", "")
    bash = shutil.which(own if Path(own).name == "bash" else "bash")
    if bash is None:
        return
    done = subprocess.run(  # noqa: S603 - the user's shell
        [bash, "--norc", "-c", 'echo "${BASH_VERSION}"'],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        check=False,
    )
    found = re.match(r"(\d+)\.(\d+)", done.stdout)
    if found and (int(found[1]), int(found[2])) < _OLDEST_BASH:
        raise LocalspecError(
            f"bash {found[0]} cannot complete localspec: it takes bash 4.4 or newer",
            "Use zsh (--install-completion zsh), or install a newer bash.",
        )


def _found() -> bool:
    """Whether the shell finds localspec; `uv run` adds its folder for this process alone."""
    folders = os.environ.get("PATH", "").split(os.pathsep)
    if "UV" in os.environ:
        folders = [each for each in folders if Path(each) != Path(sys.executable).parent]
    return shutil.which(_PROGRAM, path=os.pathsep.join(folders)) is not None


def _fish(source: str) -> Path:
    """Write the script into fish's own folder, which fish reads on demand."""
    base = os.environ.get("XDG_CONFIG_HOME") or home() / ".config"
    script = Path(base) / "fish" / "completions" / f"{_PROGRAM}.fish"
    script.parent.mkdir(parents=True, exist_ok=True)
    script.write_text(source, encoding="utf-8")
    return script


def _started(shell: str, source: str) -> Path:
    """Write a line, once, into the file that bash or zsh reads at its start."""
    folder = config_folder()
    private.make_folder(folder)
    script = folder / f"completion.{shell}"
    script.write_text(_BEFORE[shell] + source, encoding="utf-8")
    own = os.environ.get("ZDOTDIR") if shell == "zsh" else None
    names = _LOGIN if (shell, sys.platform) == ("bash", "darwin") else _STARTS[shell]
    starts = [Path(own or home()) / name for name in names]
    start = next((each for each in starts if each.exists()), starts[0])
    text = start.read_text("utf-8", "surrogateescape") if start.exists() else ""
    line = f'[ -r "{script}" ] && . "{script}"'
    if line not in text:
        with start.open("a", encoding="utf-8", errors="surrogateescape") as file:
            file.write(f"{'' if text.endswith(chr(10)) or not text else chr(10)}{line}\n")
    return start
