"""What operators see: metrics and traces."""
