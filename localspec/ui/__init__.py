"""The Textual app; the only room that touches Textual."""
