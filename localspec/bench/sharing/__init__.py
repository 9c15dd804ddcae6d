"""What one machine measured, in a form that others can read."""
