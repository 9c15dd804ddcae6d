"""Replays of recorded rounds."""
