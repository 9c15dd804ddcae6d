#!/usr/bin/env bash
# The tests on a real GPU backend: builds llama.cpp's libraries with it, for the source that the
# installed llama-cpp-python has, and runs `pytest -m device`.
#
#     tests/device.sh [vulkan|cuda] [FOLDER] [PYTEST OPTIONS]
#
# vulkan (the default): on Mesa's software driver; Debian 12, 13 and Ubuntu 24.04 (Debian 12's driver
# cannot do all of it); compiles for ten minutes on two cores, and installs packages as root. cuda: on a card, with NVIDIA's toolkit
# installed; compiles for an hour and a half of one core. FOLDER keeps the libraries between runs
# (by default one in ~/.cache).
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-.venv/bin/python}
version=$("$python" -c 'from importlib.metadata import version; print(version("llama-cpp-python"))')
backend=${1:-vulkan}
[ $# -gt 0 ] && shift
folder=${1:-$HOME/.cache/localspec-$backend}
[ $# -gt 0 ] && shift
built="$folder/$version"

as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi; }

if ! [ -e "$built/libggml-$backend.so" ]; then
  if [ "$backend" = vulkan ]; then
    as_root apt-get update -qq
    as_root apt-get install -y -qq build-essential cmake ninja-build mesa-vulkan-drivers glslc \
      libvulkan-dev spirv-headers
  fi
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  uv tool run pip download --quiet --no-deps --no-binary llama-cpp-python -d "$work" \
    "llama-cpp-python==$version"
  tar -xzf "$work"/llama_cpp_python-*.tar.gz -C "$work" --strip-components 1
  if [ "$backend" = vulkan ] && ! grep -q VkLayerSettingEXT /usr/include/vulkan/vulkan_core.h; then
    # Debian 12's headers are older than a block that only looks for mistakes of llama.cpp's own.
    sed -i -e '/VkBool32 enable_best_practice = /,/vk::LayerSettingsCreateInfoEXT/d' \
      -e 's/, layers, extensions, &layer_setting_info)/, layers, extensions)/' \
      "$work/vendor/llama.cpp/ggml/src/ggml-vulkan/ggml-vulkan.cpp"
  fi
  cmake -S "$work/vendor/llama.cpp" -B "$work/build" -G Ninja -DCMAKE_BUILD_TYPE=Release \
    -DBUILD_SHARED_LIBS=ON -DCMAKE_BUILD_RPATH_USE_ORIGIN=ON -DLLAMA_BUILD_COMMON=OFF \
    -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_TOOLS=OFF -DLLAMA_BUILD_EXAMPLES=OFF \
    -DLLAMA_BUILD_APP=OFF -DGGML_RPC=ON "-DGGML_${backend^^}=ON"
  cmake --build "$work/build" --target llama "ggml-$backend"
  mkdir -p "$built"
  cp -P "$work"/build/bin/*.so* "$built"
fi

# Mesa's driver counts as a processor, which llama.cpp uses only where it is named.
[ "$backend" = vulkan ] && export GGML_VK_VISIBLE_DEVICES=0
LLAMA_CPP_LIB_PATH=$built "$python" -m pytest -m device tests/test_device.py "$@"
