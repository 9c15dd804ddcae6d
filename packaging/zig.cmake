# Compiles llama.cpp on Linux with the C and C++ compiler in the Python package ziglang, for systems
# that have none (uv is all that is needed):
#
#     CMAKE_ARGS="-DCMAKE_TOOLCHAIN_FILE=$PWD/packaging/zig.cmake" uv run localspec chat
#
# The variable ZIG_TARGET, such as aarch64-linux-gnu.2.17, compiles for another system
# (packaging/build_wheel.py).
execute_process(
    COMMAND uv run --quiet --no-project --with "ziglang>=0.17,<0.18"
        python -c "import pathlib, ziglang; print(pathlib.Path(ziglang.__file__).parent / 'zig')"
    OUTPUT_VARIABLE zig
    OUTPUT_STRIP_TRAILING_WHITESPACE
    COMMAND_ERROR_IS_FATAL ANY)

list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES ZIG_TARGET)
if(ZIG_TARGET)
    set(zig_linux Linux)
    set(zig_windows Windows)
    set(zig_macos Darwin)
    string(REGEX MATCH "^([^-]+)-([a-z]+)" _ "${ZIG_TARGET}")
    set(CMAKE_SYSTEM_PROCESSOR "${CMAKE_MATCH_1}")
    set(CMAKE_SYSTEM_NAME "${zig_${CMAKE_MATCH_2}}")
    set(zig_target "-target ${ZIG_TARGET}")
    if(zig_target MATCHES windows)
        set(zig_shared "-shared) set -- \"$@\" '${CMAKE_CURRENT_LIST_DIR}/windows.c' ;;")
    endif()
    if(zig_target MATCHES macos)
        foreach(part METAL BLAS ACCELERATE) # need Apple's SDK
            set(GGML_${part} OFF)
        endforeach()
        # At installation CMake would change the libraries' paths by install_name_tool, which zig
        # lacks: they are linked with the paths that they are to have.
        set(CMAKE_BUILD_WITH_INSTALL_RPATH ON)
        set(CMAKE_INSTALL_NAME_TOOL /bin/false CACHE FILEPATH "")
    endif()
    # Programs of the build itself run here: without the target, this file compiles for this machine.
    set(GGML_VULKAN_SHADERS_GEN_TOOLCHAIN "${CMAKE_CURRENT_LIST_FILE}")
endif()

# CMake wants a program for each tool, zig is one for all. zig reads -march as the name of a
# processor, so the levels of Arm are given to it as features.
foreach(tool cc c++ ar ranlib rc)
    set(zig_${tool} "${CMAKE_BINARY_DIR}/zig-${tool}")
    set(options "")
    if(tool MATCHES "^c")
        set(options "${zig_target}")
    endif()
    file(WRITE "${zig_${tool}}" "#!/bin/sh
for given; do
    shift
    case $given in
        ${zig_shared}
        -bundle) given=-dynamiclib ;; # a backend for macOS: zig makes no bundles
        -march=armv*) given=$(echo \"$given\" | sed -e 's/-march=armv8-a/-mcpu=generic/' \\
            -e 's/-march=armv\\([0-9]\\)\\.\\([0-9]\\)-a/-mcpu=generic+v\\1_\\2a/' \\
            -e 's/+fp16/+fullfp16/' -e 's/+nosve/-sve/') ;;
    esac
    set -- \"$@\" \"$given\"
done
exec '${zig}' ${tool} ${options} \"$@\"
")
    file(CHMOD "${zig_${tool}}" PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE)
endforeach()
set(CMAKE_C_COMPILER "${zig_cc}")
set(CMAKE_CXX_COMPILER "${zig_c++}")
set(CMAKE_ASM_COMPILER "${zig_cc}")
set(CMAKE_AR "${zig_ar}" CACHE FILEPATH "")
set(CMAKE_RANLIB "${zig_ranlib}" CACHE FILEPATH "")
set(CMAKE_RC_COMPILER "${zig_rc}" CACHE FILEPATH "")

include("${CMAKE_CURRENT_LIST_DIR}/../.ci/llama.cmake")
