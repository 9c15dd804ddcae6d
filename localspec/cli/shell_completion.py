"""`localspec --install-completion`: commands and options complete in the shell."""

from __future__ import annotations

import os
from pathlib import Path

from click import Command
from click.shell_completion import get_completion_class

from localspec import private
from localspec.errors import LocalspecError, UsageError
from localspec.pairs.disk.folders import config_folder, home

_PROGRAM = "localspec"
_STARTS = {"bash": ".bashrc", "zsh": ".zshrc"}
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
        LocalspecError: a file cannot be written, or there is no home folder.
    """
    shell = shell or Path(os.environ.get("SHELL", "")).name
    made = get_completion_class(shell)
    if made is None:
        name = shell or "this shell"
        raise UsageError(
            f"there is no completion for {name}", "Say --install-completion bash, zsh or fish."
        )
    source = made(command, {}, _PROGRAM, variable).source()
    try:
        where = _fish(source) if shell == "fish" else _started(shell, source)
    except OSError as error:
        raise LocalspecError(
            f"the completion cannot be written: {error.strerror} ({error.filename})",
            "Make the home folder writable.",
        ) from None
    return f"{shell} completes localspec from its next start on ({where})"


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
    start = Path(own or home()) / _STARTS[shell]
    text = start.read_text("utf-8", "surrogateescape") if start.exists() else ""
    line = f'[ -r "{script}" ] && . "{script}"'
    if line not in text:
        with start.open("a", encoding="utf-8", errors="surrogateescape") as file:
            file.write(f"{'' if text.endswith(chr(10)) or not text else chr(10)}{line}\n")
    return start
