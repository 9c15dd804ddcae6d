"""The hardware that llama.cpp uses: this machine's devices, and those of workers."""
