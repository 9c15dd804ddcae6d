"""Paired measurements of speculation off against on."""
