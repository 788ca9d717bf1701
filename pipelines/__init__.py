"""Launch scripts over `streamlearn.ingest`, for users who start Beam pipelines themselves."""
