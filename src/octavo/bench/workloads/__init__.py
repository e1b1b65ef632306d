"""What a server is asked: streams of requests, the same again for the same seed."""
