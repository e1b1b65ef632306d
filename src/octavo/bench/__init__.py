"""Measurements of Octavo's parts and of the whole."""
