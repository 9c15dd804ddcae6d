"""Stopped and woken in the middle of an answer and of a download; attached at another size."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

if sys.platform == "win32":
    pytest.skip("needs a pseudo-terminal", allow_module_level=True)

from tests.support import ggufs, toy
from tests.support.hub_server import digest
from tests.support.hub_world import world
from tests.support.kills import OPTIONS, QUESTION, Killing
from tests.support.terminal import ROOT
from tests.support.waiting import wait_for


@pytest.mark.slow
def test_an_answer_goes_on_where_the_machine_slept(
    toy_target: Path, toy_draft: Path, tmp_path: Path
) -> None:
    chat = Killing(tmp_path, 1)
    chat.sleep(3.0)
    chat.leave()


@pytest.mark.slow
def test_a_download_goes_on_where_the_machine_slept(tmp_path: Path) -> None:
    name = "big-Q8_0.gguf"
    with world(tmp_path) as found:
        repo = found.server.add("ann/Big-GGUF", {name: ggufs.model(n_bytes=3_000_000)})
        fault = found.server.fault("/cdn/ann/Big-GGUF", hold_after=1_000_000, whole=True)
        command = [sys.executable, "-m", "localspec", "pull", repo.name, "--draft", "none"]
        short = {**found.environment(), "HF_HUB_DOWNLOAD_TIMEOUT": "1"}
        with subprocess.Popen(command, env={**os.environ, **short}, stdout=subprocess.PIPE) as pull:
            wait_for(fault.reached.is_set)
            pull.send_signal(signal.SIGSTOP)
            time.sleep(1.5)
            fault.release.set()
            pull.send_signal(signal.SIGCONT)
            assert pull.wait(30) == 0
        assert digest(found.snapshot(repo.name, repo.commit, name)) == repo.sha256(name)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("tmux") is None, reason="needs tmux")
def test_detached_and_attached_at_another_size(
    toy_target: Path, toy_draft: Path, tmp_path: Path
) -> None:
    def tmux(*arguments: str) -> str:
        command = ["tmux", "-S", str(tmp_path / "socket"), "-f", "/dev/null", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    def shows(text: str) -> bool:
        return text in tmux("capture-pane", "-p")

    toy.install(tmp_path)
    places = [f"LOCALSPEC_{each}={tmp_path}" for each in ("CACHE", "DATA", "CONFIG")]
    program = ["env", *places, f"PYTHONPATH={ROOT}", sys.executable]
    tmux(
        "new-session", "-d", "-x", "120", "-y", "40", *program, "-m", "localspec", "chat", *OPTIONS
    )
    try:
        wait_for(lambda: shows("ready"))
        tmux("send-keys", QUESTION, "Enter")
        wait_for(lambda: shows(f"▌ {QUESTION}"))
        tmux("resize-window", "-x", "60", "-y", "20")
        wait_for(lambda: shows("tokens/s") and shows("ready"))
        lines = tmux("capture-pane", "-p").splitlines()
        assert max(map(len, lines)) <= 60
        tmux("resize-window", "-x", "100", "-y", "30")
        wait_for(lambda: any(len(line) > 60 for line in tmux("capture-pane", "-p").splitlines()))
        wait_for(lambda: shows(f"▌ {QUESTION}"))
    finally:
        tmux("kill-server")
