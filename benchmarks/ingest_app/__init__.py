"""The application that ingest is measured with."""
