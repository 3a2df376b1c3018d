"""`straggler`, and `python -m straggler`; imports take seconds, and Ctrl-C is quiet during them too."""

import io
import sys


def main() -> None:
    """The command; what it needs is imported here, so that processes it starts do without."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # where there is no × or ±, a question mark will do
            stream.reconfigure(errors="replace")
    try:
        from straggler.running.allocator import tune_allocator

        tune_allocator()  # before torch is imported
        from straggler.cli import main as command

        command()
    except KeyboardInterrupt:
        print("error: interrupted", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
