"""Entry point of the command `straggler` and of `python -m straggler`."""

import io
import sys


def main() -> None:
    """Run the command line; Ctrl-C during the imports ends it quietly too."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal without × or ± shows a question mark
            stream.reconfigure(errors="replace")
    from straggler.running import supervision

    if supervision.is_supervised(sys.argv[1:]):
        sys.exit(supervision.Supervisor(sys.argv[1:]).run())
    supervision.start_heartbeat()
    try:
        from straggler.running.allocator import tune_allocator

        tune_allocator()  # before torch is imported
        from straggler.cli import main as run_command_line

        run_command_line()
    except KeyboardInterrupt:
        print("error: interrupted", file=sys.stderr)
        sys.exit(130)
    finally:
        supervision.tell_supervisor(supervision.ENDED)


if __name__ == "__main__":
    main()
