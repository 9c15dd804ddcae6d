"""Commands about this machine: `bench`, `tune`, `doctor`, `ps`, `worker`."""
