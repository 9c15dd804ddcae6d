"""Requests and answers in the form that all protocols share."""
