"""The Textual app; the only room that touches Textual.

These parts use private names of Textual. Each has a test that goes through it, and `pyproject.toml`
keeps Textual to the tested versions:

- `launch`: the names by which the terminal's driver makes its decoder and its parser, and asks for
  keys (our own driver would have to repeat its loop, which is private as well), how the parser
  reads a key, what the driver of Windows calls to get keys, and how the app handles an unforeseen
  error, which the command line prints instead.
- `transcript.transcript`: our scrollbar replaces the one that Textual makes.
- `input.prompt_area`: a widget's bindings, which run before the letters typed after them.
- `chat_app`: bindings that are added once the user's keys are known, and those of a dialogue.
- `widgets`: the lines of an option list, to mark the chosen one.
"""
