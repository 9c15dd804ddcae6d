"""The command line in a child process that starts fast: the library is loaded beforehand."""

from __future__ import annotations

import os
import resource
import sys
from pathlib import Path

import huggingface_hub.file_download
from huggingface_hub import constants

import localspec.cli.models.pull
from localspec.cli import subcommands

assert huggingface_hub.file_download, localspec.cli.models.pull


def run(endpoint: str, home: str, data: str, arguments: tuple[str, ...], limit: int) -> None:
    """Run `localspec ARGUMENTS` and exit with its code; no output is kept."""
    constants.ENDPOINT = endpoint
    constants.HUGGINGFACE_CO_URL_TEMPLATE = endpoint + "/{repo_id}/resolve/{revision}/{filename}"
    constants.HF_HOME = home
    constants.HF_HUB_CACHE = str(Path(home) / "hub")
    constants.HF_TOKEN_PATH = str(Path(home) / "token")
    os.environ["LOCALSPEC_DATA"] = data
    os.environ.pop("HF_TOKEN", None)
    if limit:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    sys.argv = ["localspec", *arguments]
    log = Path(home).parent / f"log-{os.getpid()}"
    with log.open("w", encoding="utf-8") as file:
        sys.stdout = sys.stderr = file
        subcommands.main()
