# Included by the build of llama-cpp-python (CMAKE_PROJECT_llama_cpp_INCLUDE, packaging/build_wheel.py).
# VULKAN_HEADERS names the folder with the headers of Vulkan and SPIR-V. It may be /usr/include, where
# the headers of this system's C library are as well, so only theirs are shown to the compiler.
set(vulkan "${CMAKE_BINARY_DIR}/vulkan")
file(MAKE_DIRECTORY "${vulkan}")
foreach(folder vulkan vk_video spirv)
    file(CREATE_LINK "${VULKAN_HEADERS}/${folder}" "${vulkan}/${folder}" SYMBOLIC)
endforeach()

# The driver of a card brings the library of Vulkan, for its own system: one of the same name with
# empty functions takes its place while the backend is linked.
file(STRINGS "${vulkan}/vulkan/vulkan_core.h" functions REGEX "VKAPI_CALL vk")
list(TRANSFORM functions REPLACE ".*VKAPI_CALL (vk[A-Za-z0-9]+).*" "void \\1(void) {}\n")
list(JOIN functions "" functions)
file(WRITE "${vulkan}/vulkan.c" "${functions}")
execute_process(
    COMMAND "${CMAKE_C_COMPILER}" -shared -Wl,-soname,libvulkan.so.1
        -o "${vulkan}/libvulkan.so" "${vulkan}/vulkan.c"
    COMMAND_ERROR_IS_FATAL ANY)
set(Vulkan_INCLUDE_DIR "${vulkan}" CACHE PATH "")
set(Vulkan_LIBRARY "${vulkan}/libvulkan.so" CACHE FILEPATH "")
