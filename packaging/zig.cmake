# Compiles llama.cpp on Linux with the C and C++ compiler in the Python package ziglang, for systems
# that have none (uv is all that is needed):
#
#     CMAKE_ARGS="-DCMAKE_TOOLCHAIN_FILE=$PWD/packaging/zig.cmake" uv run localspec chat
execute_process(
    COMMAND uv run --quiet --no-project --with "ziglang>=0.17,<0.18"
        python -c "import pathlib, ziglang; print(pathlib.Path(ziglang.__file__).parent / 'zig')"
    OUTPUT_VARIABLE zig
    OUTPUT_STRIP_TRAILING_WHITESPACE
    COMMAND_ERROR_IS_FATAL ANY)

# CMake wants a program for each tool, zig is one for all.
foreach(tool cc c++ ar ranlib)
    set(zig_${tool} "${CMAKE_BINARY_DIR}/zig-${tool}")
    file(WRITE "${zig_${tool}}" "#!/bin/sh\nexec '${zig}' ${tool} \"$@\"\n")
    file(CHMOD "${zig_${tool}}" PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE)
endforeach()
set(CMAKE_C_COMPILER "${zig_cc}")
set(CMAKE_CXX_COMPILER "${zig_c++}")
set(CMAKE_ASM_COMPILER "${zig_cc}")
set(CMAKE_AR "${zig_ar}" CACHE FILEPATH "")
set(CMAKE_RANLIB "${zig_ranlib}" CACHE FILEPATH "")

include("${CMAKE_CURRENT_LIST_DIR}/../.ci/llama.cmake")
