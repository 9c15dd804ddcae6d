"""What models cost on this machine: measured, kept, and what follows from it."""
