"""localspec: local chat with speculative decoding that never changes what the model says."""

__version__ = "0.1.0"
