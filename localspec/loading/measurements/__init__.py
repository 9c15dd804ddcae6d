"""What models cost on this machine: measurements, their storage, and decisions from them."""
