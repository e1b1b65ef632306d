"""WHO runs WHEN: pure policy over requests, block ids and rows. No arrays, no clock, no model."""
