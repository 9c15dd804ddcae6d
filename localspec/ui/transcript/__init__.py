"""The conversation as it is drawn: the widget, its items, and Markdown in blocks."""
