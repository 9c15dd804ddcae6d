# /// script
# requires-python = ">=3.11"
# dependencies = ["auditwheel>=6.8,<7"]
# ///
"""Build a wheel of llama-cpp-python that chooses the kernels for the processor when it runs.

    uv tool run pip download --no-deps --no-binary llama-cpp-python llama-cpp-python==0.3.36
    uv run packaging/build_wheel.py llama_cpp_python-0.3.36.tar.gz x86_64-linux-gnu.2.17

The wheel holds a backend for each level of the processor's family, and the one for workers, in
the folder of llama.cpp's library. It suits every version of Python 3. Its version has a local part,
for which uv and pip prefer it to the source distribution. With ``--vulkan`` it also holds a backend
for graphics cards: Vulkan's headers and the compiler of its programs, glslc, are this system's. The
version of a wheel with such a backend ends with its name: uv and pip prefer it to one without.

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
from collections.abc import Iterable
from pathlib import Path

PLATFORMS = {
    "x86_64-linux-gnu.2.17": "linux_x86_64",
    "aarch64-linux-gnu.2.17": "linux_aarch64",
    "x86_64-windows-gnu": "win_amd64",
    "aarch64-macos": "macosx_13_0_arm64",
    "metal": "macosx_13_0_arm64",
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
_LIBRARY = re.compile(r"llama_cpp/lib/(?:lib)?(.+)\.(?:so|dylib|dll)")
PARTS = ("llama", "ggml", "ggml-base", "ggml-rpc")
"""Libraries without which a wheel is of no use."""
_X86 = (
    *("x64", "sse42", "sandybridge", "ivybridge", "piledriver", "haswell", "skylakex"),
    *("cannonlake", "cascadelake", "icelake", "cooperlake", "zen4", "alderlake", "sapphirerapids"),
)
_ARM = (
    *("armv8.0_1", "armv8.2_1", "armv8.2_2", "armv8.2_3", "armv8.6_1", "armv8.6_2"),
    *("armv9.2_1", "armv9.2_2"),
)
LEVELS = {
    "linux_x86_64": _X86,
    "linux_aarch64": _ARM,
    "win_amd64": _X86,
    "macosx_13_0_arm64": ("apple_m1", "apple_m2_m3", "apple_m4"),
}
"""The levels of processors that llama.cpp builds a backend for, by platform."""


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


def build(source: Path, target: str, work: Path, further: dict[str, str]) -> Path:
    """Compile llama.cpp for `target`, with `further` definitions; return the wheel in `work`."""
    packaging = Path(__file__).resolve().parent
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
        defines["ZIG_TARGET"] = target
        defines["CMAKE_TOOLCHAIN_FILE"] = f"{packaging}/zig.cmake"
    defines |= further
    settings = [f"cmake.define.{name}={value}" for name, value in defines.items()]
    settings += [f"wheel.exclude={';'.join(EXCLUDED)}", f"build-dir={work}/build"]
    settings += [f"wheel.tags=py3-none-{PLATFORMS[target]}"]
    settings += ["install.strip=false"]  # a strip that is here also takes the compiler's name
    options = [part for each in settings for part in ("--config-setting", each)]
    command = ["uv", "build", "--wheel", *options, "--out-dir", str(work), str(source)]
    subprocess.run(command, check=True)
    (wheel,) = work.glob("*.whl")
    return wheel


def vulkan_defines() -> dict[str, str]:
    """CMake's definitions for a Vulkan backend; exits with a message if the system lacks a part.

    Headers are looked for in the folder that the variable VULKAN_SDK names, by default in the
    system's; glslc also in all folders of programs.
    """
    packaging = Path(__file__).resolve().parent
    sdk = Path(os.environ.get("VULKAN_SDK") or "/usr").absolute()
    core = sdk / "include/vulkan/vulkan_core.h"
    programs = os.pathsep.join((str(sdk / "bin"), os.environ["PATH"]))
    parts = {
        "glslc": shutil.which("glslc", path=programs) is not None,
        "Vulkan's headers of version 1.3.272 or newer": core.exists()
        and "VkLayerSettingEXT" in core.read_text(encoding="utf-8"),
        "SPIR-V's headers": (sdk / "include/spirv/unified1/spirv.hpp").exists(),
    }
    if missing := " and ".join(name for name, there in parts.items() if not there):
        sys.exit(
            f"--vulkan needs {missing} in {sdk};"
            " Debian 13 and Ubuntu 24.04: apt install glslc libvulkan-dev spirv-headers"
        )
    return {
        "GGML_VULKAN": "ON",
        "CMAKE_PROJECT_llama_cpp_INCLUDE": f"{packaging}/vulkan.cmake",
        "VULKAN_HEADERS": f"{sdk}/include",
    }


def parts_of(target: str, *more: str) -> tuple[str, ...]:
    """The libraries that a wheel for `target` needs: those of all levels, and `more`."""
    levels = (f"ggml-cpu-{level}" for level in LEVELS[PLATFORMS[target]])
    return (*PARTS, *levels, *more)


def require_parts(wheel: Path, parts: Iterable[str]) -> None:
    """Exit with a message if a library is missing in the folder from which backends are loaded."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    found = {each[1] for name in names if (each := _LIBRARY.fullmatch(name))}
    if missing := [part for part in parts if part not in found]:
        sys.exit(f"{wheel.name} lacks {', '.join(missing)}")


def tagged(wheel: Path, target: str, out: Path) -> None:
    """Put the wheel into `out`, on Linux with the tag of the oldest glibc that it runs on.

    Exits with a message if a library needs anything that this tag does not promise.
    """
    processor, _, glibc = target.partition("-linux-gnu.")
    if glibc:
        tag = f"manylinux_{glibc.replace('.', '_')}_{processor}"
        repaired = wheel.parent / "repaired"
        # auditwheel's --plat takes the tags of this machine's processor alone, so it finds the tag.
        command = ["auditwheel", "repair", "--patcher", "none"]
        command += ["--exclude", "libvulkan.so.1"]  # comes with the driver of a card
        subprocess.run([*command, "--wheel-dir", str(repaired), str(wheel)], check=True)
        (wheel,) = repaired.iterdir()
        if tag not in wheel.name:
            sys.exit(f"{wheel.name} needs more than the tag {tag} promises")
    out.mkdir(parents=True, exist_ok=True)
    shutil.copy(wheel, out)


def main() -> None:
    """Build one wheel."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sdist", type=Path, help="the source distribution of llama-cpp-python")
    parser.add_argument("target", choices=PLATFORMS, help="what to compile for")
    parser.add_argument("-o", "--out", type=Path, default=Path("wheels"), help="for the wheel")
    parser.add_argument("--local", default="localspec.1", help="local part of the version")
    parser.add_argument("--vulkan", action="store_true", help="add it (Linux)")
    given = parser.parse_args()
    if given.vulkan and "linux" not in given.target:
        parser.error("--vulkan is for Linux alone")
    further = vulkan_defines() if given.vulkan else {}
    cards = ["metal"] if given.target == "metal" else ["vulkan"] if given.vulkan else []
    parts = parts_of(given.target, *(f"ggml-{each}" for each in cards))
    with tempfile.TemporaryDirectory() as work:
        source = unpacked(given.sdist, Path(work, "source"), ".".join((given.local, *cards)))
        wheel = build(source, given.target, Path(work), further)
        require_parts(wheel, parts)
        tagged(wheel, given.target, given.out)


if __name__ == "__main__":
    main()
