"""The Textual app; the only room that touches Textual.

What it uses of Textual that is no public interface, and why; each has a test that goes through it,
and `pyproject.toml` keeps Textual to the versions that were tried:

- `launch`: the name by which the terminal's driver makes its decoder (a driver of our own would
  have to repeat the driver's loop and its parser, which are private as well), and how the app takes
  and prints an unforeseen error; the command line tells of it instead.
- `conversation.transcript`: a scrollbar of our own has to be put where Textual makes its own.
- `conversation.input`: a widget's bindings, run before the letters that were typed after them.
- `app`: bindings that are added once the user's keys are known.
- `bases`: the lines of an option list, to put a mark before the one that is chosen.
"""
