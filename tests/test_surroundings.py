"""What a process depends on and may lack: folders, variables, libraries, encodings of files.

Each fault that was reported has a second test of another example of its kind.
"""

from __future__ import annotations

import codecs
import errno
import io
import json
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import msgspec
import pytest
from huggingface_hub import constants

from localspec import connections, errors, private
from localspec.bench import comparison, prompt_sets
from localspec.chat.conversation import Message, Role
from localspec.chat.prompt.template import ChatTemplate
from localspec.cli import standard_streams, subcommands
from localspec.cli.answers.serve import _keys
from localspec.cli.option_types import file_text
from localspec.cli.settings_file import read
from localspec.cli.shell_completion import install
from localspec.cli.utf8_mode import ensure_utf8
from localspec.engine.llama import Model
from localspec.engine.llama.grammar import check_grammar
from localspec.engine.llama.library import library_folder
from localspec.engine.scratch import nameless_file
from localspec.errors import AccessDenied, LocalspecError, UsageError, in_words, of_system
from localspec.loading.load_request import LoadRequest
from localspec.pairs.disk import folders
from localspec.pairs.hub import cache, response_body
from localspec.pairs.names import references
from localspec.pairs.names.references import Reference
from localspec.process import messages as m
from localspec.process import spawning
from localspec.serve.core.requests import parsed
from localspec.serve.http_server import listening
from localspec.serve.protocols.text_completions import CompletionRequest
from localspec.tools.server_settings import ServersFile
from localspec.ui.input.extracts import attached
from tests.support.command import run
from tests.support.gguf_models import Sizes, other_vocabulary, write_llama
from tests.support.hub_server import CERTIFICATE
from tests.support.terminal import Terminal
from tests.test_process import Heard

posix = pytest.mark.skipif(sys.platform == "win32", reason="a folder in use cannot be deleted")


def localspec(*words: str, cwd: Path | None = None, **variables: str) -> tuple[int, str, str]:
    """Run a command, in a folder that is deleted first if it exists."""
    inside = (
        "import os, sys, runpy; os.rmdir(os.getcwd()); " if cwd is not None else "import runpy; "
    )
    program = inside + "runpy.run_module('localspec', run_name='__main__')"
    done = subprocess.run(
        [sys.executable, "-P", "-c", program, *words],
        cwd=cwd,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=120,
        check=False,
    )
    assert "has a fault" not in done.stderr
    assert "Traceback" not in done.stderr
    return done.returncode, done.stdout, done.stderr


SHORT = ("-p", "A dog", "-n", "3", "--gamma", "0", "-t", "1", "-c", "128")


# --- a working folder that was deleted --------------------------------------------------------


@pytest.mark.slow
@posix
@pytest.mark.parametrize("engine", ["", "inline"])
def test_a_prompt_is_answered_in_a_folder_that_is_gone(tmp_path: Path, engine: str) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    code, out, told = localspec("run", "toy", *SHORT, cwd=folder, LOCALSPEC_ENGINE=engine)
    assert (code, told) == (0, "")
    assert out.strip()


@pytest.mark.slow
@posix
def test_a_file_that_is_looked_for_there_is_missing_in_words(tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    code, _, told = localspec("run", "model.gguf", *SHORT, cwd=folder)
    assert code == 1
    assert "model.gguf does not exist" in told


@pytest.mark.slow
@posix
def test_an_engine_that_dies_is_started_again_in_a_folder_that_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    heard = Heard(LoadRequest(pair="toy", threads=1, ctx_size=128, gamma=0))
    try:
        heard.until(m.Loaded)
        monkeypatch.chdir(folder)
        folder.rmdir()
        heard.engine.kill()
        heard.until(m.Died)
        heard.engine.reload(())
        heard.until(m.Loaded)
    finally:
        monkeypatch.chdir(tmp_path)
        heard.engine.shut_down()
        for child in heard.children:
            child.join(20)


@posix
def test_what_needs_the_folder_says_that_it_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    with pytest.raises(FileNotFoundError) as lost:
        Path("x.gguf").absolute()
    assert in_words(lost.value) == (
        "the folder that this was started in is gone",
        "Change to another (cd).",
    )


# --- no folder for temporary files ------------------------------------------------------------


@pytest.fixture
def no_temporary_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> Any:
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/tmp']")

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="only Linux has files in memory")
@pytest.mark.usefixtures("no_temporary_folder")
def test_an_engine_needs_no_temporary_folder() -> None:
    process, log = spawning.engine(("-c", "import sys; sys.stderr.write('said')"))
    with log:
        process.communicate(timeout=60)
        log.seek(0)
        assert log.read() == b"said"


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="only Linux has files in memory")
@pytest.mark.usefixtures("no_temporary_folder")
def test_a_grammar_is_checked_without_one() -> None:
    check_grammar('root ::= "a"')
    with pytest.raises(UsageError, match="the grammar is not valid"):
        check_grammar("root ::= (")


@pytest.mark.usefixtures("no_temporary_folder")
def test_where_memory_holds_no_file_either_the_variable_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(os, "memfd_create", raising=False)
    with pytest.raises(OSError, match="temporary") as lost:
        nameless_file()
    assert "TMPDIR" in in_words(lost.value)[1]


@posix
def test_a_system_that_shows_no_processes_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """This is so without /proc, which a chroot may lack."""
    monkeypatch.setattr("psutil._psplatform.pids", list)
    told = run("ps")
    assert (told.code, told.err) == (
        1,
        "error: the system shows no processes\n  Mount /proc here.\n",
    )


# --- no home ----------------------------------------------------------------------------------


@posix
@pytest.mark.parametrize(
    ("variable", "folder"),
    [("LOCALSPEC_DATA", folders.data_folder), ("LOCALSPEC_CACHE", folders.cache_folder)],
)
def test_without_a_home_nothing_is_put_into_a_folder_named_after_it(
    monkeypatch: pytest.MonkeyPatch, variable: str, folder: Any
) -> None:
    def nobody(_uid: int) -> Any:
        raise KeyError("no such user")

    for name in (variable, "HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", nobody)
    with pytest.raises(LocalspecError, match="no home folder") as told:
        folder()
    assert variable in told.value.remedy


@posix
@pytest.mark.parametrize("shell", ["bash", "fish"])
def test_without_a_home_completion_has_nowhere_to_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shell: str
) -> None:
    def nobody(_uid: int) -> Any:
        raise KeyError("no such user")

    monkeypatch.setenv("LOCALSPEC_CONFIG", str(tmp_path))
    for name in ("HOME", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", nobody)
    with pytest.raises(LocalspecError, match="no home folder"):
        install(shell, click.Command("localspec"), "_X")


# --- certificates and proxies -----------------------------------------------------------------


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("SSL_CERT_FILE", "/dev/null/file"),
        ("SSL_CERT_FILE", os.devnull),
        ("HTTPS_PROXY", "http://user:secret@127.0.0.1:1"),
        ("https_proxy", "nonsense://x"),
    ],
)
def test_a_variable_that_leads_nowhere_is_named(variable: str, value: str) -> None:
    code, _, told = localspec("pull", "a/b", **{variable: value})
    assert code == 1
    assert variable in told
    assert "secret" not in told


@pytest.mark.slow
def test_a_log_of_keys_that_cannot_be_written_is_named() -> None:
    """Where certificates come from a file, Python opens that log, too."""
    variables = {"SSL_CERT_FILE": str(CERTIFICATE), "SSLKEYLOGFILE": "/dev/null/file"}
    code, _, told = localspec("pull", "a/b", **variables)
    assert code == 1
    assert "unset SSLKEYLOGFILE." in told


def test_of_several_variables_those_that_are_wrong_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path))
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "none.pem"))
    monkeypatch.setenv("SSLKEYLOGFILE", str(tmp_path / "keys"))
    assert connections.certificates() == "SSL_CERT_FILE"
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path / "none"))
    assert connections.certificates() == "SSL_CERT_FILE and SSL_CERT_DIR"


def test_where_no_variable_names_certificates_the_one_that_can_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As in a company whose proxy signs all connections; other programs have other variables."""
    for name in ("SSL_CERT_FILE", "SSL_CERT_DIR", "SSLKEYLOGFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", "/etc/company.pem")
    assert "set SSL_CERT_FILE" in connections.way_out(Exception("CERTIFICATE_VERIFY_FAILED"))


@pytest.mark.few(1)
@pytest.mark.parametrize("reference", ["a/b", "https://huggingface.co/a/b"])
def test_an_address_of_the_hub_that_is_none_is_named(reference: str) -> None:
    code, _, told = localspec("pull", reference, HF_ENDPOINT="http://[")
    assert code == 2
    assert "HF_ENDPOINT cannot be used: Invalid IPv6 URL" in told


def test_of_the_hubs_variables_the_wrong_one_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_ETAG_TIMEOUT", "soon")
    monkeypatch.setenv("HF_HOME", "/somewhere")
    wrong = ValueError("invalid literal for int() with base 10: 'soon'")
    assert cache.faulty_variable(wrong) == "HF_HUB_ETAG_TIMEOUT"
    assert cache.faulty_variable(ValueError("Invalid IPv6 URL")).startswith("one of HF_")


@pytest.mark.parametrize("token", ["\x1b[200~hf_secret", "hf_secr\xe9t", "\ufeffhf_secret"])
@pytest.mark.parametrize("variable", ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", None])
def test_a_token_that_cannot_be_sent_is_told_with_its_place_and_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str | None, token: str
) -> None:
    """A terminal that pastes marks, an editor that writes a byte-order mark, a wrong letter."""
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    path = tmp_path / "token"
    path.write_text(token, "utf-8")
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(path))
    if variable is not None:
        monkeypatch.setenv(variable, token)
    with pytest.raises(AccessDenied) as told:
        response_body._headers()
    assert told.value.remedy == f"Check the token in {variable or path}."
    assert "secr" not in str(told.value)


@pytest.mark.slow
def test_a_token_that_is_no_text_is_told_with_its_file(tmp_path: Path) -> None:
    (tmp_path / "token").write_bytes(b"hf_\xff")
    code, _, told = localspec(
        "pull", "a/b", HF_HOME=str(tmp_path), HF_ENDPOINT="http://127.0.0.1:1"
    )
    assert code == 1
    assert "the access token cannot be read" in told
    assert str(tmp_path / "token") in told


# --- a shell's completion ---------------------------------------------------------------------

PROGRAM = "import sys; sys.argv[0] = 'localspec'; from localspec.cli import main; main()"


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("shell", "word"), [("bash", None), ("bash", "here"), ("zsh", None), ("fish", None)]
)
def test_a_variable_of_completion_that_no_shell_has_set_is_named(
    shell: str, word: str | None
) -> None:
    words = {} if word is None else {"COMP_WORDS": "localspec", "COMP_CWORD": word}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "_LOCALSPEC_COMPLETE": f"{shell}_complete", **words},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("error: _LOCALSPEC_COMPLETE is set")
    assert "Unset it" in done.stderr


# --- the screen's own variables ---------------------------------------------------------------


@pytest.mark.slow
@posix
@pytest.mark.parametrize(
    ("variable", "value"),
    [("TEXTUAL_COLOR_SYSTEM", "plaid"), ("TEXTUAL_DRIVER", "xterm"), ("TEXTUAL_DRIVER", "")],
)
def test_a_screen_that_its_variables_spoil_is_told(
    tmp_path: Path, variable: str, value: str
) -> None:
    chat = Terminal(["chat", "toy", "-c", "128"], tmp_path, environment={variable: value})
    try:
        assert chat.ends() == 2
        assert f"error: the screen failed with {variable} set" in chat.text()
        assert f"Unset {variable}." in chat.text()
    finally:
        chat.child.close(force=True)


# --- llama.cpp's library ----------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("command", [("run", "toy", *SHORT), ("doctor",)])
def test_a_library_that_is_missing_is_told_with_the_variable(command: tuple[str, ...]) -> None:
    code, _, told = localspec(*command, LLAMA_CPP_LIB_PATH="/dev/null/folder")
    assert code == 1
    assert "llama.cpp's library cannot be loaded" in told
    assert "Unset LLAMA_CPP_LIB_PATH" in told


def test_a_library_that_is_none_is_told_with_its_path(tmp_path: Path) -> None:
    for name in ("libllama.so", "libllama.dylib", "llama.dll"):
        (tmp_path / name).write_bytes(b"not one")
    code, _, told = localspec("show", "toy", LLAMA_CPP_LIB_PATH=str(tmp_path))
    assert code == 1
    assert str(tmp_path) in told
    assert "Unset LLAMA_CPP_LIB_PATH" in told


@pytest.mark.skipif(sys.platform != "linux", reason="the library has another name elsewhere")
def test_a_library_of_another_version_is_told_with_the_function_that_it_lacks(
    tmp_path: Path,
) -> None:
    shutil.copy(library_folder() / "libggml-base.so", tmp_path / "libllama.so")
    code, _, told = localspec("show", "toy", LLAMA_CPP_LIB_PATH=str(tmp_path))
    assert code == 1
    assert "undefined symbol: llama_" in told
    assert "Unset LLAMA_CPP_LIB_PATH" in told


@pytest.mark.parametrize(
    ("variable", "way"), [("", "Install localspec again"), ("x", "PYTHONPATH")]
)
def test_a_package_that_cannot_be_loaded_is_told(
    monkeypatch: pytest.MonkeyPatch, variable: str, way: str
) -> None:
    monkeypatch.setenv("PYTHONPATH", variable)
    error = ImportError("libxyz.so.6: cannot open shared object file: No such file or directory")
    for one in (error, m.SentError.of(error).exception()):
        said, remedy = in_words(one)
        assert "libxyz.so.6" in said
        assert way in remedy


@pytest.mark.slow
@pytest.mark.parametrize("command", [("run", "toy", *SHORT), ("doctor",)])
def test_packages_of_another_python_are_told_with_the_variable(
    tmp_path: Path, command: tuple[str, ...]
) -> None:
    (tmp_path / "numpy").mkdir()
    (tmp_path / "numpy" / "__init__.py").write_text("from numpy._core import multiarray\n")
    path = os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH"))))
    code, _, told = localspec(*command, PYTHONPATH=path)
    assert code == 1
    assert "Unset PYTHONPATH" in told


# --- a locale without UTF-8 -------------------------------------------------------------------

ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


@posix
@pytest.mark.parametrize("words", [("é",), ("pull", "é/b"), ("run", "--grammar-file", "é")])
def test_words_are_utf8_also_where_the_locale_is_ascii(words: tuple[str, ...]) -> None:
    code, _, told = localspec(*words, **ASCII)
    assert code != 0
    assert "é" in told
    assert told == localspec(*words)[2]


@pytest.mark.slow
@posix
def test_a_prompt_is_utf8_from_wherever_it_comes(tmp_path: Path) -> None:
    model = write_llama(tmp_path / "é.gguf", other_vocabulary(), Sizes(), seed=0, type="q8_0")
    words = ("run", str(model), "-p", "Ünïcode é", *SHORT[2:], "--temp", "0")
    folder = {"LOCALSPEC_DATA": str(tmp_path / "ü")}
    usual = localspec(*words, **folder)
    assert usual[0] == 0
    assert localspec(*words, **folder, **ASCII) == usual


@pytest.mark.parametrize(
    ("locale", "word", "again"),
    [
        ("ascii", "a", True),
        ("iso8859-1", "Ã©", True),  # what this locale makes of an é in UTF-8
        ("iso8859-1", "a", False),
        ("iso8859-1", "é", False),  # a letter of Latin 1, which it reads rightly
        ("euc_jp", "\x81", False),  # which glibc reads there, and Python does not write
        ("utf-8", "é", False),
    ],
)
def test_a_command_begins_again_where_the_locale_reads_its_words_wrongly(
    locale: str, word: str, again: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[object] = []
    monkeypatch.setattr("os.execv", lambda *what: begun.append(what))
    monkeypatch.setattr("os.environ", {"HOME": "/root"})
    monkeypatch.setattr("os.fsencode", lambda text: text.encode(locale, "surrogateescape"))
    monkeypatch.setattr("sys.getfilesystemencoding", lambda: locale)
    monkeypatch.setattr("sys.argv", ["localspec", word])
    ensure_utf8()
    assert begun == [(sys.executable, sys.orig_argv)] * again
    ensure_utf8()  # once: with -E, Python does not read the variable
    assert len(begun) == again


@pytest.mark.parametrize(
    ("system", "how", "written"),
    [
        ("linux", ({}, "file"), "a ? ё\n".encode("cp1251")),
        ("win32", ({}, "file"), "a × ё\n".encode()),
        ("win32", ({}, "pipe"), "a ? ё\n".encode("cp1251")),
        ("win32", ({"PYTHONIOENCODING": "cp1251"}, "file"), "a ? ё\n".encode("cp1251")),
    ],
)
def test_output_takes_letters_that_its_encoding_lacks(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    system: str,
    how: tuple[dict[str, str], str],
    written: bytes,
) -> None:
    (asked, to), (reading, writing) = how, os.pipe()
    raw = io.FileIO(tmp_path / "out", "w") if to == "file" else io.FileIO(writing, "w")
    out = io.TextIOWrapper(io.BufferedWriter(raw), "cp1251", write_through=True, newline="")
    monkeypatch.setattr(sys, "stdout", out)
    seen = SimpleNamespace(platform=system, stdout=out, stderr=None)
    monkeypatch.setattr(standard_streams, "sys", seen)
    monkeypatch.setattr(standard_streams.os, "environ", asked)
    monkeypatch.setattr(subcommands.cli, "main", lambda **_: click.echo("a × ё"))
    with pytest.raises(SystemExit) as left:
        subcommands.main()
    assert left.value.code == 0
    out.flush()
    assert ((tmp_path / "out").read_bytes() if to == "file" else os.read(reading, 99)) == written
    out.close()
    os.close(reading)
    if to == "file":
        os.close(writing)


# --- byte-order marks -------------------------------------------------------------------------


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32"])
def test_files_of_any_editor_are_read_without_their_mark(tmp_path: Path, encoding: str) -> None:
    """This holds for every file that a user may write; PowerShell's ``>`` writes `utf-16`."""
    path = tmp_path / "file"

    def holds(text: str) -> Path:
        path.write_bytes(text.encode(encoding))
        return path

    assert file_text(holds('root ::= "é"')) == 'root ::= "é"'
    assert attached(holds("é")).endswith("\né\n```")
    assert read(holds('system-prompt = "é"')).values[""] == {"system-prompt": "é"}
    assert prompt_sets.read(holds('{"prompt": "é"}')).prompts[0].text == "é"
    assert private.read_json(holds('{"a": "é"}'), dict[str, str]) == {"a": "é"}
    servers = '{"mcpServers": {"a": {"command": "é"}}}'
    assert ServersFile(holds(servers)).servers()["a"].command == "é"
    report = {"format": comparison.FORMAT, "name": "é"}
    assert comparison.load(holds(json.dumps(report, ensure_ascii=False)))["name"] == "é"


def test_half_a_character_is_refused_in_words(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for raw in (b"\xff", codecs.BOM_UTF16_LE + b"a"):
        path.write_bytes(raw)
        with pytest.raises(click.BadParameter, match="not UTF-8"):
            file_text(path)


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-32-be"])
def test_wide_letters_without_a_mark_are_refused_in_words(tmp_path: Path, encoding: str) -> None:
    """They are valid UTF-8 with zero bytes: llama.cpp would read a grammar up to the first one."""
    path = tmp_path / "file"
    path.write_bytes(f"root ::= {'a' * 30}".encode(encoding))
    with pytest.raises(click.BadParameter, match="not UTF-8"):
        file_text(path)
    with pytest.raises(UsageError, match="cannot be read"):
        _keys(path)
    with pytest.raises(UsageError, match="not UTF-8 text"):
        attached(path)


def test_the_mark_of_a_template_in_a_model_is_no_part_of_prompts(tmp_path: Path) -> None:
    source = "\ufeff{% for m in messages %}{{ m.content }}{% endfor %}"
    vocabulary = replace(other_vocabulary(), template=source)
    path = write_llama(tmp_path / "m.gguf", vocabulary, Sizes(), seed=0, type="q8_0")
    with Model.load(path) as model:
        template = ChatTemplate(model)
        try:
            assert template.render([Message(Role.USER, "hi")]) == "hi"
        finally:
            template.close()


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32"])
def test_a_request_may_begin_with_a_mark(encoding: str) -> None:
    body = '{"prompt": "é"}'.encode(encoding)
    assert parsed(body, CompletionRequest).prompt == "é"


# --- addresses of a mirror --------------------------------------------------------------------


@pytest.mark.parametrize("endpoint", ["https://mirror.test/art/api", "https://mirror.test/hub/"])
@pytest.mark.parametrize(
    ("rest", "reference"),
    [
        ("u/r", Reference("u/r")),
        ("u/r/resolve/main/m.gguf", Reference("u/r", file="m.gguf", revision="main")),
    ],
)
def test_the_path_of_a_mirror_is_no_repository(
    monkeypatch: pytest.MonkeyPatch, endpoint: str, rest: str, reference: Reference
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", endpoint)
    assert references.parse(f"{endpoint.rstrip('/')}/{rest}") == reference
    assert references.parse(f"https://huggingface.co/{rest}") == reference


@pytest.mark.parametrize("host", ["a..b", "x" * 80])
def test_a_name_that_no_host_can_have_is_told(host: str) -> None:
    with pytest.raises(UsageError, match=r"cannot listen at .*:0: "):
        listening(host, 0)


# --- what was not foreseen --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "way"),
    [
        (errno.EACCES, "permissions"),
        (errno.EROFS, "can be written"),
        (errno.ENOSPC, "Make room"),
        (errno.ELOOP, "Check that path"),
        (errno.EFBIG, "ulimit -f"),
    ],
)
def test_an_error_of_the_system_names_its_path_also_over_the_pipe(number: int, way: str) -> None:
    error = OSError(number, os.strerror(number), "/some/file")
    fault = msgspec.msgpack.decode(msgspec.msgpack.encode(m.SentError.of(error)), type=m.SentError)
    for one in (error, fault.exception()):
        assert isinstance(one, OSError)
        said = of_system(one)
        assert said is not None
        assert "/some/file" in said[0]
        assert way in said[1]


@posix
@pytest.mark.parametrize("number", [errno.EAGAIN, errno.ENOMEM, errno.EFBIG])
def test_what_the_system_lacks_is_told_without_a_path_too(number: int) -> None:
    said = of_system(OSError(number, os.strerror(number)))
    assert said is not None
    assert os.strerror(number) in said[0]


THREADS = """
import resource, threading
from localspec.cli.subcommands import report
resource.setrlimit(resource.RLIMIT_AS, (1 << 28, 1 << 28))
threading.stack_size(1 << 28)
try:
    threading.Thread(target=print).start()
except RuntimeError as error:
    report(error)
"""


@posix
def test_a_thread_that_cannot_be_started_is_told() -> None:
    done = subprocess.run(
        [sys.executable, "-c", THREADS], capture_output=True, text=True, check=True
    )
    assert done.stderr.startswith("error: no further thread can be started\n  Allow more")


def test_on_windows_no_limit_is_to_be_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(errors, "os", SimpleNamespace(name="nt", environ={}))
    thread = RuntimeError("can't start new thread")
    helps = {errno.EMFILE: "Start localspec again", errno.EFBIG: "a disk of another format."}
    for one in (thread, *(OSError(number, os.strerror(number)) for number in errors._STRAINS)):
        said = of_system(one)
        assert said is not None
        assert "ulimit" not in said[1]
        number = one.errno if isinstance(one, OSError) else errno.EAGAIN
        assert helps.get(number or 0, "") in said[1]
    assert of_system(thread) == ("no further thread can be started", "Close other programs.")


def test_an_error_that_names_nothing_stays_a_fault() -> None:
    assert of_system(OSError("what?")) is None
    assert "unforeseen" in in_words(OSError("what?"))[0]
