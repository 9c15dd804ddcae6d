# Included by the build of llama-cpp-python (CMAKE_PROJECT_llama_cpp_INCLUDE). It asks for the library
# of llama.cpp's own programs, a third of the work, which nothing loads: this leaves it out.
set(LLAMA_BUILD_COMMON OFF)
