"""Reports: JSON, text, and a page with plots."""
