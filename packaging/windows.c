// Linked into every library for Windows. Each begins with the same functions of zig's, and exports
// all that it has: a library that links to another one would have these functions twice.
__asm__(".section .drectve,\"yni\"\n"
        ".ascii \" -exclude-symbols:atexit,_CRT_INIT,__mingw_module_is_dll\"\n"
        ".text");
