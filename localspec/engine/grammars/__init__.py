"""Grammars: what constrained output may say next."""
