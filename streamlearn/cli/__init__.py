"""The command line: `streamlearn VERB ...`. Each verb has a file, which loads its component when it runs."""

from streamlearn.cli.main import command, main

__all__ = ["command", "main"]
