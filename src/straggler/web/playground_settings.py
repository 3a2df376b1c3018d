"""The playground: what can be chosen, which settings a page may send, and stories to begin with."""

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from straggler.algorithms.methods import METHODS
from straggler.algorithms.optimizers import OPTIMIZERS
from straggler.config.registry import InputError, explain_validation_error, parse_entry, suggest_name
from straggler.experiment import Experiment

ALLOWED: tuple[str, ...] = ("method", "dataset", "model", "lr", "momentum", "workers", "partition")
ALLOWED += ("compute", "delay", "epochs", "eval_every", "seed", "snapshots")
WHOLE = ("workers", "seed", "snapshots")
MOST = {"workers": 256, "epochs": 200, "snapshots": 100}
DATASETS = {
    "digits": "8×8 digits: a run takes seconds",
    "mixture": "Gaussian mixture: a run takes seconds",
    "fashion-mnist": "Fashion-MNIST: a run takes minutes",
    "mnist": "MNIST: a run takes minutes",
    "cifar10": "CIFAR-10: a run takes long",
}
MODELS = {"linear": "linear", "mlp": "one hidden layer", "lenet5": "LeNet-5 (1×28×28 pictures)"}
PARTITIONS = {
    "iid": "split at random",
    "shared": "everybody has all of it",
    "label": "split by label",
    "dirichlet(alpha=0.1)": "Dirichlet, α = 0.1: very uneven",
    "dirichlet(alpha=1.0)": "Dirichlet, α = 1: uneven",
    "shards": "two shards each",
}
# What decides how much memory and time it takes is chosen from these; all else may be written.
OFFERED: dict[str, list[str]] = {
    "dataset": list(DATASETS),
    "model": list(MODELS),
    "partition": list(PARTITIONS),
}
START: dict[str, Any] = {
    "method": "asgd", "dataset": "digits", "model": "mlp", "partition": "iid", "workers": 8, "spread": 0.2,
    "slow": 0, "slowness": 4, "hiccups": 0, "lr": 0.02, "momentum": None, "epochs": 10, "seed": 0,
}  # fmt: skip
STORIES: list[dict[str, Any]] = [
    {
        "title": "Everybody equally fast",
        "text": "Eight equal workers, each gradient applied at once. A worker comes back to find that "
        "the other seven moved the model: every gradient is 7 updates old. Staleness is not "
        "slowness; it is company.",
        "set": {"spread": 0},
    },
    {
        "title": "One slow worker",
        "text": "Worker 0 takes five times as long. The others do not care: they go on. But when its "
        "gradient comes, it was computed at a model from long ago. Look for the bars far to "
        "the right.",
        "set": {"slow": 1},
    },
    {
        "title": "Synchronous waits",
        "text": "The same cluster, but the server waits for all gradients and steps on their mean. "
        "Nothing is stale, and everybody waits for the slow one: grey everywhere. Run both and "
        "compare them over time, then over epochs.",
        "set": {"method": "ssgd", "slow": 1, "lr": 0.1},
    },
    {
        "title": "Momentum breaks with staleness",
        "text": "Momentum repeats old directions; so does staleness. With sixteen workers the two "
        "together overshoot, and the run learns nothing at all (NC: no convergence). Run it, "
        "pin it, then try the next story.",
        "set": {"method": "nag-asgd", "workers": 16, "lr": 0.01},
    },
    {
        "title": "Repaired: DANA, gap-aware",
        "text": "The same momentum, learning rate and staleness. But workers are sent the model where "
        "everybody's momentum will have carried it, and a gradient counts less the further the "
        "model moved. Compare the gaps.",
        "set": {"method": "dana-ga", "workers": 16, "lr": 0.01},
    },
    {
        "title": "Data split by label",
        "text": "Each worker has only some of the digits, and the slow one is the only one that has "
        "its own. What it knows arrives rarely and late. Run it and look at the accuracy of "
        "each class: which digits did the model never learn?",
        "set": {"partition": "label", "slow": 1, "slowness": 9},
    },
    {
        "title": "Abandon the slow ones",
        "text": "The server takes the first two gradients of each round and stops everybody else. No "
        "staleness, no waiting for the slow worker, but most of the work is thrown away.",
        "set": {"method": "k-sync", "slow": 1, "lr": 0.05},
    },
]


def choices() -> dict[str, Any]:
    """Everything the page offers."""
    methods = {}
    for name, method in METHODS.items():
        if not method.single:
            optimizer = parse_entry(method.optimizer, OPTIMIZERS)
            momentum = getattr(optimizer, "momentum", None)
            methods[name] = {"text": f"{name}: {method.summary}", "momentum": momentum}
    return {
        "methods": methods,
        "datasets": DATASETS,
        "models": MODELS,
        "partitions": PARTITIONS,
        "start": START,
        "stories": STORIES,
    }


def parse_settings(given: Mapping[str, Any]) -> dict[str, Any]:
    """What a page sent, as settings of an experiment: known keys, plain values, nothing that reads a file."""
    settings: dict[str, Any] = {}
    for key, value in given.items():
        if key not in ALLOWED:
            raise InputError(f"{key[:40]!r} cannot be set from the page; use the command line")
        values = value if key == "delay" and isinstance(value, list) else [value]
        if any(not isinstance(item, str | int | float) or isinstance(item, bool) for item in values):
            raise InputError(f"{key}: write text or a number")
        if any("trace" in str(item) or len(str(item)) > 500 for item in values):
            raise InputError(f"{key}: traces are read from files, which a page may not; use the command line")
        if key in OFFERED and str(value) not in OFFERED[key]:
            raise InputError(
                f"{key}={str(value)[:80]!r} is not offered here; {suggest_name(str(value), OFFERED[key])}"
            )
        settings[key] = [str(item) for item in values] if key == "delay" else as_number(key, value)
    return settings


def as_number(key: str, value: Any) -> Any:
    """Numbers come as text in an address."""
    if key not in ("lr", "momentum", "workers", "epochs", "eval_every", "seed", "snapshots"):
        return str(value)
    try:
        number = float(value) if key not in WHOLE or isinstance(value, float) else int(str(value))
        if key in WHOLE and number != int(number):
            raise ValueError
    except (ValueError, OverflowError):
        whole = "a whole number" if key in WHOLE else "a number"
        raise InputError(f"{key}={str(value)[:80]!r}: it must be {whole}") from None
    if number > MOST.get(key, float("inf")):
        raise InputError(f"{key}={value}: from the page at most {MOST[key]}; use the command line")
    return int(number) if key in WHOLE else number


def build_experiment(settings: Mapping[str, Any]) -> Experiment:
    """Checked, with an error in one line."""
    try:
        return Experiment(**settings)
    except ValidationError as error:
        raise InputError(explain_validation_error(error, Experiment.model_fields)) from None
