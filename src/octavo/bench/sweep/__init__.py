"""One workload over many settings, each point in a process of its own."""
