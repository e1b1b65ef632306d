"""One module for each endpoint or few that belong together."""
