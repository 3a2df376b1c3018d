"""A process that has imported what a run needs, and waits for one: `python -m straggler.cli.warm_run`.

Importing torch takes seconds. The live pages start such processes ahead, so that a run starts at once.
"""

import json
import sys

PRELOADED_DATA = ("digits", "mixture")  # small, and generated or part of scikit-learn


def wait_for_run() -> None:
    """Import everything, read the arguments of `straggler` from standard input, and execute them.

    Without a line, the server has ended or has no more use for this process.
    """
    import straggler.running.runner  # noqa: F401
    from straggler.cli import main
    from straggler.cli.train import run  # noqa: F401
    from straggler.experiment import Experiment

    for name in PRELOADED_DATA:
        Experiment(dataset=name, model="linear").problem()
    line = sys.stdin.readline()
    if line:
        sys.argv = ["straggler", *json.loads(line)]
        main()


if __name__ == "__main__":
    wait_for_run()
