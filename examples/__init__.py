"""Applications to start from, each complete in one folder."""
