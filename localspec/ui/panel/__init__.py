"""The figures on the screen."""
