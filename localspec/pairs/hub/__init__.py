"""The Hub: repositories, their bytes, the cache. The only package that uses huggingface_hub."""
