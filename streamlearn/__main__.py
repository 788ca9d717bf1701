"""`python -m streamlearn` is `streamlearn`."""

from streamlearn.cli import command

__all__: list[str] = []

if __name__ == "__main__":
    command()
