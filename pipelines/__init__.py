"""Launch scripts, each a thin `run(argv)` over `streamlearn.ingest`, for whoever starts Beam's pipelines himself."""
