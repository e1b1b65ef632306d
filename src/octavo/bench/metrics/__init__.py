"""Numbers from what was recorded."""
