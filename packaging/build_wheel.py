# /// script
# requires-python = ">=3.11"
# dependencies = ["auditwheel>=6.8,<7"]
# ///
"""Build a wheel of llama-cpp-python that chooses the kernels for the processor when it runs.

    uv tool run pip download --no-deps --no-binary llama-cpp-python llama-cpp-python==0.3.36
    uv run packaging/build_wheel.py llama_cpp_python-0.3.36.tar.gz x86_64-linux-gnu.2.17

The wheel holds a backend for each level of the processor's family, and the one for workers, in
the folder of llama.cpp's library. It suits every version of Python 3. Its version has a local part,
for which uv and pip prefer it to the source distribution.

The compiler is the one in the Python package ziglang, which compiles on Linux for every target but
``metal``: that one needs a Mac with Apple's tools.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

PLATFORMS = {
    "x86_64-linux-gnu.2.17": "linux-x86_64",
    "aarch64-linux-gnu.2.17": "linux-aarch64",
    "x86_64-windows-gnu": "win-amd64",
    "aarch64-macos": "macosx-13.0-arm64",
    "metal": "macosx-13.0-arm64",
}
"""The platform that a wheel's tag names, by the target that zig compiles for."""

DEFINES = {
    "GGML_BACKEND_DL": "ON",
    "GGML_CPU_ALL_VARIANTS": "ON",
    "GGML_NATIVE": "OFF",
    "GGML_OPENMP": "OFF",  # its library would have to come along
    "GGML_RPC": "ON",
    "LLAVA_BUILD": "OFF",
    "CMAKE_INSTALL_BINDIR": "llama_cpp/lib",  # where llama.cpp installs its backends
    "CMAKE_INSTALL_LIBDIR": "llama_cpp/lib",
    "CMAKE_PLATFORM_NO_VERSIONED_SONAME": "ON",  # a wheel has no links: one copy instead of three
}
EXCLUDED = ["/include", "llama_cpp/lib/cmake", "llama_cpp/lib/pkgconfig", "*.a", "*.lib"]
PARTS = {"llama": 1, "ggml": 1, "ggml-base": 1, "ggml-rpc": 1, r"ggml-cpu-[\w.]+": 3}
"""Libraries without which a wheel is of no use, and how many of each there are at least."""


def unpacked(sdist: Path, folder: Path, local: str) -> Path:
    """Unpack a source distribution and add `local` to its version; return its folder."""
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    (source,) = folder.iterdir()
    module = source / "llama_cpp/__init__.py"
    text, count = re.subn(r'(__version__ = "[\d.]+)"', rf'\1+{local}"', module.read_text())
    if count != 1:
        sys.exit(f"{sdist} does not name its version where it was expected")
    module.write_text(text)
    return source


def build(source: Path, target: str, work: Path) -> Path:
    """Compile llama.cpp for `target`; return the wheel, which lies in `work`."""
    packaging = Path(__file__).resolve().parent
    environment = dict(os.environ, _PYTHON_HOST_PLATFORM=PLATFORMS[target])
    defines = dict(DEFINES, CMAKE_INSTALL_RPATH="$ORIGIN")
    if "macosx" in PLATFORMS[target]:
        defines |= {
            "CMAKE_INSTALL_RPATH": "@loader_path",
            "CMAKE_OSX_ARCHITECTURES": "arm64",
            "CMAKE_OSX_DEPLOYMENT_TARGET": "13.0",
        }
    if target == "metal":
        defines["CMAKE_PROJECT_llama_cpp_INCLUDE"] = f"{packaging.parent}/.ci/llama.cmake"
    else:
        # zig's C++ library has five times as much debug information as there is code.
        defines |= {"CMAKE_SHARED_LINKER_FLAGS": "-s", "CMAKE_MODULE_LINKER_FLAGS": "-s"}
        defines["CMAKE_TOOLCHAIN_FILE"] = f"{packaging}/zig.cmake"
        environment["ZIG_TARGET"] = target
    settings = [f"cmake.define.{name}={value}" for name, value in defines.items()]
    settings += [f"wheel.exclude={';'.join(EXCLUDED)}", f"build-dir={work}/build"]
    settings += ["install.strip=false"]  # a strip that is here also takes the compiler's name
    options = [part for each in settings for part in ("--config-setting", each)]
    command = ["uv", "build", "--wheel", *options, "--out-dir", str(work), str(source)]
    subprocess.run(command, env=environment, check=True)
    (wheel,) = work.glob("*.whl")
    return wheel


def require_parts(wheel: Path) -> None:
    """Exit with a message if a library is missing in the folder from which backends are loaded."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    for part, least in PARTS.items():
        wanted = re.compile(rf"llama_cpp/lib/(lib)?{part}\.(so|dylib|dll)")
        found = [name for name in names if wanted.fullmatch(name)]
        if len(found) < least:
            sys.exit(f"{wheel.name} has {len(found)} of {part}, and needs {least}")


def tagged(wheel: Path, target: str, out: Path) -> None:
    """Put the wheel into `out`, on Linux with the tag of the oldest glibc that it runs on.

    auditwheel refuses if a library needs anything that this tag does not promise.
    """
    out.mkdir(parents=True, exist_ok=True)
    processor, _, glibc = target.partition("-linux-gnu.")
    if not glibc:
        shutil.copy(wheel, out)
        return
    tag = f"manylinux_{glibc.replace('.', '_')}_{processor}"
    command = ["auditwheel", "repair", "--patcher", "none", "--plat", tag, "--wheel-dir"]
    subprocess.run([*command, str(out), str(wheel)], check=True)


def main() -> None:
    """Build one wheel."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sdist", type=Path, help="the source distribution of llama-cpp-python")
    parser.add_argument("target", choices=PLATFORMS, help="what to compile for")
    parser.add_argument("-o", "--out", type=Path, default=Path("wheels"), help="for the wheel")
    parser.add_argument("--local", default="localspec.1", help="local part of the version")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        source = unpacked(given.sdist, Path(work, "source"), given.local)
        wheel = build(source, given.target, Path(work))
        require_parts(wheel)
        tagged(wheel, given.target, given.out)


if __name__ == "__main__":
    main()
