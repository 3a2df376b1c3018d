"""The ASU report's own numbers: (test accuracy in percent, training time in seconds)."""

from typing import Any

Row = tuple[dict[str, Any], float, float]  # changes to the baseline, accuracy, seconds

# Tables 4 to 6.
BASELINES: dict[str, dict[str, tuple[float, float]]] = {
    "mnist": {"sync": (95.38, 33.24), "async": (94.94, 32.10)},
    "cifar10": {"sync": (48.98, 68.86), "async": (47.29, 65.91)},
    "fashion-mnist": {"sync": (30.91, 202.04), "async": (29.18, 283.07)},
}

# Tables 7 to 12: what is changed, by the report's names (k is num_workers_ps_update, tolerance is
# staleness_tolerance, pull is pull_weights_interval_rule).
ABLATIONS: dict[str, tuple[str, str, tuple[Row, ...]]] = {
    "7": (
        "mnist",
        "sync",
        (
            ({"workers": 6, "k": 6}, 95.38, 38.90),
            ({"batch_size": 64}, 95.09, 23.96),
            ({"pull": 2}, 93.04, 35.18),
            ({"workers": 6, "k": 6, "batch_size": 64}, 95.29, 26.13),
        ),
    ),
    "8": (
        "mnist",
        "async",
        (
            ({"k": 2}, 95.07, 33.20),
            ({"tolerance": 10}, 95.36, 32.13),
            ({"workers": 4}, 95.20, 28.97),
            ({"workers": 6}, 96.02, 36.08),
            ({"batch_size": 64}, 94.89, 24.03),
            ({"tolerance": 10, "workers": 6, "batch_size": 64}, 95.63, 25.86),
        ),
    ),
    "9": (
        "cifar10",
        "sync",
        (
            ({"workers": 4, "k": 4}, 46.55, 58.42),
            ({"workers": 6, "k": 6}, 48.50, 76.08),
            ({"lr": 0.05}, 48.79, 67.43),
            ({"batch_size": 64}, 46.42, 49.60),
            ({"pull": 2}, 41.79, 66.72),
            ({"batch_size": 64, "lr": 0.05}, 48.29, 43.21),
        ),
    ),
    "10": (
        "cifar10",
        "async",
        (
            ({"k": 2}, 48.56, 62.43),
            ({"tolerance": 10}, 47.80, 69.71),
            ({"lr": 0.05}, 49.78, 60.58),
            ({"batch_size": 64}, 46.26, 42.66),
            ({"lr": 0.05, "k": 2}, 48.60, 62.59),
            ({"lr": 0.05, "k": 2, "batch_size": 64}, 47.85, 41.82),
        ),
    ),
    "11": (
        "fashion-mnist",
        "sync",
        (
            ({"workers": 4, "k": 4}, 29.60, 217.59),
            ({"lr": 0.01}, 38.73, 279.72),
            ({"batch_size": 256}, 27.35, 517.18),
            ({"batch_size": 64}, 39.80, 179.81),
            ({"pull": 3}, 33.01, 118.57),
            ({"batch_size": 64, "workers": 4, "k": 4, "lr": 0.01, "pull": 2}, 43.87, 144.86),
        ),
    ),
    "12": (
        "fashion-mnist",
        "async",
        (
            ({"k": 4}, 33.54, 269.42),
            ({"workers": 4}, 30.24, 204.85),
            ({"tolerance": 100}, 21.33, 253.0),
            ({"lr": 0.01}, 67.30, 196.039),
            ({"batch_size": 64}, 27.00, 131.06),
            ({"pull": 3}, 37.76, 107.27),
            ({"workers": 4, "k": 3, "lr": 0.01, "pull": 3}, 53.70, 207.46),
        ),
    ),
}

# Table 13: what the best change is, by table; it is the last row there.
IMPROVEMENTS = {
    "7": "synchronous",
    "8": "hybrid: tolerance",
    "9": "synchronous",
    "10": "hybrid: k",
    "11": "hybrid: pull",
    "12": "hybrid: k",
}


def change_name(changes: dict[str, Any]) -> str:
    """How a change stands in a table."""
    return ", ".join(f"{key} = {value}" for key, value in changes.items())
