"""Example applications, each complete in one folder."""
