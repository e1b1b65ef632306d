"""From a request to its answer: laid out, run, read, told."""
