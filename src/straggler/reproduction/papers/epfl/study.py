"""Lamour, Reategui and Junod (EPFL 2023): delays, partitions, momentum and compensation, two protocols.

As written: Nesterov momentum, delays on whom the report says, a delay compensation that compensates, workers
that run until the common budget is spent, and a gradient that takes 12.5 ms on each of them.

As coded: heavy ball; "one slow worker" is d for everyone and 2 d for the first; workers stop after their own
share; compensation never runs; Adam's β₁ is .99; and a gradient takes about as long as it did where one
machine computed for all: .0125, .43 and 1.05 s with 2, 5 and 10 workers. (Its runs at 0 ms give .018, .50 and
1.05 s, those with delays .0125 s with two workers and .29 to .41 s with five.) These times are read from the
report's logs, so that agreement in time is by construction. Its races and torn reads are not imitated, nor
that validation switches dropout off for good (the large network without a split). Truncating labels changes
nothing for 2, 5 and 10 workers: classes are equally large.
"""

from collections.abc import Iterator
from typing import Any

from straggler.reproduction.figures import epfl_figures
from straggler.reproduction.more_tables import epfl_tables
from straggler.reproduction.papers.epfl.claims import CLAIMS
from straggler.reproduction.papers.epfl.landscape import survey
from straggler.reproduction.papers.epfl.numbers import (
    COMPARISON,
    COMPENSATION,
    DELAYS,
    GAUSSIAN,
    LOG,
    LOGGED,
    MOMENTA,
    ONE_SLOW,
    SECONDS,
    STRATEGIES,
    WORKERS,
)
from straggler.reproduction.study import Scale, Study, quickened
from straggler.sweeps.grid import Cell

Settings = dict[str, Any]
PROTOCOLS = ("as coded", "as written")
PARTITIONS = {"dataset": "iid", "labels": "label", "no split": "shared"}
COMPUTE = {2: 0.0125, 3: 0.0125, 5: 0.43, 10: 1.05}  # seconds per gradient in the report's logs
JITTER = 0.2  # coefficient of variation of a gradient's time; the report gives none, this is ours
TABLES = {
    "II": "Test accuracy (%) of synchronous and asynchronous SGD under delays, momentum .9",
    "III": "Momentum and delays: labels split, one slow worker; test accuracy (%)",
    "IV": "Delay compensation: labels split, one slow worker, momentum .9; test accuracy (%)",
    "causes": "The report's runs as coded, but with one thing put right; test accuracy (%)",
    "landscape": "Momenta 0 to .99, three workers that share the data; test accuracy (%)",
    "VI": "Momentum, Gaussian delay and compensation, 2 workers; test accuracy (%)",
    "VII": "Momentum, Gaussian delay and compensation, 5 workers; test accuracy (%)",
    "V": "Momentum, Gaussian delay and compensation, 10 workers; test accuracy (%)",
    "log": "Five asynchronous workers, three splits, no delay; test accuracy (%)",
    "log-cnn": "The same with the large network, which takes ten times as long; test accuracy (%)",
}


def setting(protocol: str, workers: int, strategy: str, momentum: float, **more: Any) -> Settings:
    """What all runs of a protocol have in common."""
    coded = protocol == "as coded"
    settings: Settings = {
        "dataset": "fashion-mnist",
        "model": "lenet5",
        "workers": workers,
        "partition": PARTITIONS[strategy],
        "lr": 0.005,
        "batch_size": 32,
        "epochs": 6,
        "eval_every": 0,
        "compute": batch_time(protocol, workers),
        "stop": "each" if coded else "all",
    }
    if "optimizer" not in more:
        settings |= {"momentum": momentum, "nesterov": True if momentum and not coded else None}
    return settings | more


def batch_time(protocol: str, workers: int) -> str:
    """As written a gradient takes on every cluster what it took the report with two workers."""
    seconds = COMPUTE[workers if protocol == "as coded" else 2]
    return f"gamma(mean={seconds}, cv={JITTER})"


def delays(protocol: str, who: str, milliseconds: int) -> list[str]:
    """Everyone, or one worker; as coded, one worker's delay comes on top of everyone's."""
    seconds = milliseconds / 1000
    if who == "all":
        return [f"constant(seconds={seconds})"]
    one = f"constant(seconds={seconds}, workers=[0])"
    return [f"constant(seconds={seconds})", one] if protocol == "as coded" else [one]


def comparison(protocol: str) -> Iterator[Cell]:
    """Table II."""
    columns = [(workers, strategy) for workers in WORKERS for strategy in STRATEGIES]
    for row, values in COMPARISON.items():
        for (workers, strategy), value in zip(columns, values, strict=True):
            settings = setting(protocol, workers, strategy, 0.9)
            if row == "sync":
                settings |= {"method": "ssgd", "stop": "all"}
            elif row != "async 0 ms":
                who, milliseconds, _ = row.split()
                settings["delay"] = delays(protocol, who, int(milliseconds))
            course = row in ("sync", "async 0 ms", "one 90 ms") and (workers, strategy) == (10, "labels")
            labels = {"row": row, "column": f"{workers} workers, {strategy}"}
            also = {"host_seconds": SECONDS[workers]} if row == "async 0 ms" else {}
            yield cell("II", protocol, labels, settings, value, ("course",) if course else (), also=also)


def one_slow(protocol: str) -> Iterator[Cell]:
    """Table III."""
    for momentum, rows in ONE_SLOW.items():
        for milliseconds, values in zip(DELAYS, rows, strict=True):
            for workers, value in zip(WORKERS, values, strict=True):
                delay = delays(protocol, "one", milliseconds)
                settings = setting(protocol, workers, "labels", momentum, delay=delay)
                labels = {"row": f"{milliseconds} ms", "column": f"{workers} workers, m = {momentum:g}"}
                yield cell("III", protocol, labels, settings, value)


def compensation(protocol: str) -> Iterator[Cell]:
    """Table IV: as coded these are the runs of Table II once more."""
    for lam, rows in COMPENSATION.items():
        for milliseconds, values in zip(DELAYS, rows, strict=True):
            for workers, value in zip(WORKERS, values, strict=True):
                delay = delays(protocol, "one", milliseconds)
                settings = setting(protocol, workers, "labels", 0.9, delay=delay) | correction(protocol, lam)
                labels = {"row": f"{milliseconds} ms", "column": f"{workers} workers, λ = {lam:g}"}
                yield cell("IV", protocol, labels, settings, value)


def correction(protocol: str, lam: float) -> Settings:
    """Delay compensation, which as coded never runs."""
    return {"correction": f"dc(lam={lam})"} if lam and protocol == "as written" else {}


def gaussian(protocol: str) -> Iterator[Cell]:
    """Tables V to VII, named after world sizes 11, 3 and 6: 10, 2 and 5 workers."""
    std = 0.001 if protocol == "as coded" else 0.005  # of the code of that week; of the code at its end
    for workers, table in ((2, "VI"), (5, "VII"), (10, "V")):
        for (momentum, milliseconds), values in GAUSSIAN[workers].items():
            columns = [(strategy, lam) for strategy in STRATEGIES for lam in (0.0, 2.0)]
            for (strategy, lam), value in zip(columns, values, strict=True):
                delay = f"gaussian(mean={milliseconds / 1000}, std={std})"
                settings = setting(protocol, workers, strategy, momentum, delay=delay)
                labels = {"row": f"m = {momentum:g}, {milliseconds} ms", "column": f"{strategy}, λ = {lam:g}"}
                yield cell(table, protocol, labels, settings | correction(protocol, lam), value)


def logged(protocol: str) -> Iterator[Cell]:
    """The log of 5 workers; its runs without a split keep a tenth of the data for validation."""
    for (model, optimizer), rows in LOG.items():
        for strategy, values in zip(("no split", *STRATEGIES), rows, strict=True):
            settings = optimized(protocol, model, optimizer, strategy)
            if strategy == "no split":
                settings |= {"validation": 0.1, "stop": "each"}  # six passes of each worker in both protocols
                if optimizer == "momentum 0":  # then the protocols differ in the unit of time alone: one run
                    settings["compute"] = batch_time("as coded", 5)
            labels = {"row": f"{model}, {optimizer}", "column": strategy}
            dear = strategy == "no split" or model == "cnn"
            ends_soon = model == "lenet5" or optimizer == "momentum 0.9"  # the large network diverges there
            table = "log" if ends_soon else "log-cnn"
            also = dict(zip(LOGGED, values, strict=True))
            yield cell(table, protocol, labels, settings, values[2], seeds=1 if dear else None, also=also)


def optimized(protocol: str, model: str, optimizer: str, strategy: str) -> Settings:
    """A setting with the log's optimizers and their learning rates."""
    if optimizer == "adam":
        betas = "betas=[0.99, 0.999]" if protocol == "as coded" else "betas=[0.9, 0.999]"
        settings = setting(protocol, 5, strategy, 0.0, optimizer=f"adam({betas})")
        settings["lr"] = 0.001 if model == "lenet5" else 0.0005
    else:
        settings = setting(protocol, 5, strategy, float(optimizer.split()[1]))
        settings["lr"] = 0.005 if model == "lenet5" else 0.01
    return settings | {"model": model}


def landscape(protocol: str) -> Iterator[Cell]:
    """Figures 1, 2 and 7: three workers that share the data, the trajectory kept."""
    for momentum in MOMENTA:
        settings = setting(protocol, 3, "no split", momentum, validation=0.1, snapshots=18, stop="each")
        labels = {"row": f"m = {momentum:g}", "column": "3 workers"}
        yield cell("landscape", protocol, labels, settings, None)


def causes() -> Iterator[Cell]:
    """As coded but for one thing: a common budget (nobody is left alone), or a λ at work."""
    for workers in WORKERS:
        for row in ("async 0 ms", *(f"{who} {d} ms" for who in ("one", "all") for d in DELAYS)):
            who, milliseconds, _ = row.split()
            delay = delays("as coded", who, int(milliseconds)) if int(milliseconds) else []
            settings = setting("as coded", workers, "labels", 0.9, delay=delay)
            labels = {"row": row, "column": f"{workers} workers, labels"}
            yield cell("causes", "common stop", labels, settings | {"stop": "all"}, None)
            if who == "one":
                running = settings | correction("as written", 2.0)
                yield cell("causes", "compensation runs", labels, running, None)
    for optimizer in ("momentum 0", "momentum 0.9", "adam"):
        settings = optimized("as coded", "lenet5", optimizer, "no split") | {"stop": "all"}
        yield cell(
            "causes", "equal work", {"row": f"lenet5, {optimizer}", "column": "no split"}, settings, None
        )


def cell(
    table: str,
    protocol: str,
    labels: dict[str, str],
    settings: Settings,
    source: float | None,
    keep: tuple[str, ...] = (),
    seeds: int | None = None,
    also: dict[str, float] | None = None,
) -> Cell:
    return Cell(
        {"table": table, "protocol": protocol, **labels},
        settings,
        source,
        keep,
        seeds,
        source_metrics=also or {},
    )


def cells(scale: Scale) -> list[Cell]:
    """Every table in both protocols; this source needs no smaller scale."""
    kinds = (comparison, one_slow, compensation, landscape, gaussian, logged)
    return [cell for kind in kinds for protocol in PROTOCOLS for cell in kind(protocol)] + list(causes())


def quick(cells: list[Cell]) -> list[Cell]:
    """Two workers of Table II as coded, without the delays of everyone, a twentieth of an epoch."""
    table = [cell for cell in cells if cell.labels["table"] == "II" and cell.labels["protocol"] == "as coded"]
    two = [cell for cell in table if str(cell.labels["column"]).startswith("2 workers")]
    few = [cell for cell in two if rehearsed(str(cell.labels["row"]), str(cell.labels["column"]))]
    return quickened((few or cells)[:8], epochs=0.05)


def rehearsed(row: str, column: str) -> bool:
    """Both splits without delays; the slow worker with labels only, of which there is a claim."""
    return row in ("sync", "async 0 ms") or (row.startswith("one") and column.endswith("labels"))


EPFL = Study(
    name="epfl",
    title="Convergence and model performance analysis using asynchronous distributed SGD",
    source="Lamour, Reategui and Junod, EPFL 2023",
    cells=cells,
    claims=lambda scale: CLAIMS,
    tables=TABLES,
    seeds=3,
    quick=quick,
    more=epfl_tables,
    figures=epfl_figures,
    afterwards=survey,
)
