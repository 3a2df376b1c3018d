"""Tables for the terminal and for documents."""

import runpy
from io import StringIO
from pathlib import Path

import polars as pl
from rich.console import Console

from straggler.analysis.tables import build_table

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_error_cells_have_spread_failed_runs_and_learning_rate() -> None:
    tabulate_errors = runpy.run_path(str(EXAMPLES / "methods_tables.py"))["tabulate_errors"]
    runs = pl.DataFrame(
        {
            "method": ["ga"] * 5,
            "workers": [4, 4, 4, 8, 8],
            "lr": [0.1] * 5,
            "error": [10.0, 12.0, 90.0, 90.0, 90.0],
            "converged": [True, True, False, False, False],
        }
    )
    assert tabulate_errors(runs) == (["method", "N = 4", "N = 8"], [["ga", "11.00 ± 1.41 (1 of 3 NC)", "NC"]])
    tuned = runs.with_columns(lr=pl.when(pl.col("workers") == 4).then(0.1).otherwise(0.02))
    assert tabulate_errors(tuned)[1] == [["ga", "11.00 ± 1.41 (1 of 3 NC) at 0.1", "NC at 0.02"]]


def test_column_heads_break_only_between_words() -> None:
    heads = ["", "test accuracy", "time to 80 %", "updates", "gradients", "staleness", "time"]
    row = ["asynchronous", "86.42 %", "391 s", "10,799", "10,799", "6.99", "1,500 s"]
    printed = StringIO()
    Console(width=80, file=printed).print(build_table("two runs", heads, [row]))
    assert {"accuracy", "updates", "gradients", "staleness"} <= set(printed.getvalue().split())
