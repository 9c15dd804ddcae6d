"""What is recorded of rounds: figures, traces, and what explains one."""
