"""What llama.cpp runs on: this machine's devices, and those of workers."""
