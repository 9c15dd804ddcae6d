"""The Hub: repositories, their bytes, the cache. The only room that touches huggingface_hub."""
