"""A Hub, a cache and a data folder for one test; the command line, run inside and outside."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from unittest import mock

from huggingface_hub import constants
from huggingface_hub.utils import close_session  # type: ignore[attr-defined]

from localspec.pairs.disk import folders
from tests.support import hub_child
from tests.support.command import Result, run
from tests.support.hub_server import HubServer

URL_PATH = "/{repo_id}/resolve/{revision}/{filename}"
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["tests.support.hub_child"])


@dataclass
class World:
    """Where everything is."""

    server: HubServer
    home: Path
    data: Path

    @property
    def cache(self) -> Path:
        return self.home / "hub"

    def blobs(self, repo: str) -> dict[str, int]:
        """The files in the cache's blob folder of `repo` by name, with their sizes."""
        folder = self.cache / f"models--{repo.replace('/', '--')}" / "blobs"
        return {path.name: path.stat().st_size for path in sorted(folder.glob("*"))}

    def snapshot(self, repo: str, commit: str, name: str) -> Path:
        return self.cache / f"models--{repo.replace('/', '--')}" / "snapshots" / commit / name

    def run(self, *arguments: str) -> Result:
        """Run the command line in this process."""
        return run(*arguments)

    def run_outside(self, *arguments: str, **environment: str) -> Result:
        """Run the command line in a separate process, with nothing but the environment."""
        done = subprocess.run(
            [sys.executable, "-W", "error", "-m", "localspec", *arguments],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
            env={**os.environ, **self.environment(), **environment},
        )
        return Result(done.returncode, done.stdout, done.stderr)

    def start(self, *arguments: str, limit: int = 0) -> BaseProcess:
        """Start the command line in a process that can be killed; `limit` bounds its files."""
        process = FORKS.Process(
            target=hub_child.run,
            args=(self.server.url, str(self.home), str(self.data), arguments, limit),
        )
        process.start()
        return process

    def environment(self) -> dict[str, str]:
        return {
            "HF_ENDPOINT": self.server.url,
            "HF_HOME": str(self.home),
            "LOCALSPEC_DATA": str(self.data),
            "LOCALSPEC_CONFIG": str(self.data),
        }


@contextlib.contextmanager
def world(folder: Path) -> Iterator[World]:
    """Start a server, and point the library in this process at it and at `folder`."""
    home, data = folder / "hf", folder / "data"
    settings = {
        "ENDPOINT": "",
        "HF_HOME": str(home),
        "HF_HUB_CACHE": str(home / "hub"),
        "HF_TOKEN_PATH": str(home / "token"),
        "HF_HUB_OFFLINE": False,
        "HF_HUB_DOWNLOAD_TIMEOUT": 10,
    }
    with HubServer() as server, contextlib.ExitStack() as stack:
        settings["ENDPOINT"] = server.url
        settings["HUGGINGFACE_CO_URL_TEMPLATE"] = server.url + URL_PATH
        for name, value in settings.items():
            stack.enter_context(mock.patch.object(constants, name, value))
        environment = {"LOCALSPEC_DATA": str(data)}
        stack.enter_context(mock.patch.dict(os.environ, environment))
        for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
            os.environ.pop(name, None)
        stack.callback(close_session)
        # What loads in other tests have told of this machine, such as its card.
        (folders.cache_folder() / "speed.json").unlink(missing_ok=True)
        yield World(server, home, data)
