"""Which settings suit a machine and a workload: a race against those that are used now."""
