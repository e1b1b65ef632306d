"""The same requests to several engines in turn, so that what changes with time hits all alike."""
