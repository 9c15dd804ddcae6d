"""What llama.cpp finds on this machine, what slows it down, and the command that helps."""
