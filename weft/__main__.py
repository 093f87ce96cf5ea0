"""`python -m weft` is the `weft` command."""

from .cli import main

if __name__ == "__main__":
    main(prog_name="weft")
