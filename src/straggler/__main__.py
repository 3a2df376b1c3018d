"""`python -m straggler` is `straggler`."""

from straggler.cli import main

__all__: list[str] = []

if __name__ == "__main__":
    main()
