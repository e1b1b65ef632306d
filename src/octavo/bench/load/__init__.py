"""Sending requests, and what came back when."""
