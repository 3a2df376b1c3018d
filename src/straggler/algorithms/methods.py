"""METHODS: each method of a paper is a policy × a correction × an optimizer, with its citation."""

from dataclasses import dataclass

from straggler.algorithms.references import REFERENCES


@dataclass(frozen=True)
class Method:
    """A published method: its components as text, with the paper's defaults, and its citation."""

    summary: str
    paper: str  # a key of REFERENCES
    policy: str = "asynchronous"
    correction: str = "none"
    optimizer: str = "sgd"
    single: bool = False  # whether it requires exactly one worker

    @property
    def citation(self) -> str:
        return REFERENCES[self.paper].short

    @property
    def bibtex(self) -> str:
        return REFERENCES[self.paper].bibtex


NAG = "sgd(momentum=0.9, nesterov=True)"
DANA = "dana(momentum=0.9)"

METHODS: dict[str, Method] = {
    "sgd": Method("plain SGD with one worker: the baseline", "robbins1951", single=True),
    "ssgd": Method(
        "synchronous SGD: wait for all workers, then step on the mean gradient",
        "chen2016",
        policy="synchronous",
    ),
    "asgd": Method("asynchronous SGD: apply every gradient on arrival", "dean2012"),
    "nag-asgd": Method("ASGD with Nesterov momentum at the server", "hakimi2019", optimizer=NAG),
    "async-adam": Method("ASGD with Adam at the server", "kingma2015", optimizer="adam"),
    "multi-asgd": Method(
        "ASGD with a momentum per worker", "hakimi2019", optimizer="multi(momentum=0.9, nesterov=True)"
    ),
    "sa": Method(
        "ASGD that divides each gradient by its staleness",
        "zhang2016",
        correction="staleness-aware(scale=gradient)",
        optimizer=NAG,
    ),
    "ga": Method(
        "ASGD that divides each gradient by its gap", "barkai2020", correction="gap-aware", optimizer=NAG
    ),
    "dc-asgd": Method(
        "ASGD that estimates the gradient at the current model", "zheng2017", correction="dc(lam=0.04)"
    ),
    "dc-asgd-a": Method(
        "DC-ASGD with an adaptive λ per parameter", "zheng2017", correction="dc-adaptive(lam0=2, m=0.95)"
    ),
    "dana": Method("send workers the model after the momentum of all workers", "hakimi2019", optimizer=DANA),
    "dana-slim": Method(
        "DANA with the momentum at the workers", "hakimi2019", optimizer="dana-slim(momentum=0.9)"
    ),
    "dana-sa": Method(
        "DANA, staleness-aware", "barkai2020", correction="staleness-aware(scale=gradient)", optimizer=DANA
    ),
    "dana-ga": Method("DANA, gap-aware", "barkai2020", correction="gap-aware", optimizer=DANA),
    "dana-dc": Method(
        "DANA with delay compensation", "hakimi2019", correction="dc(lam=0.04)", optimizer=DANA
    ),
    "ssp": Method(
        "stale-synchronous: no worker gets far ahead of the slowest", "ho2013", policy="ssp(bound=3)"
    ),
    "k-sync": Method(
        "step on the first k workers of each round, cancel the others", "dutta2018", policy="k-sync(k=2)"
    ),
    "k-batch-sync": Method(
        "step on the first k gradients of the current model (Rennala)",
        "tyurin2023",
        policy="k-batch-sync(k=2)",
    ),
    "k-async": Method(
        "step on the first k workers, let the others continue", "dutta2018", policy="k-async(k=2)"
    ),
    "k-batch-async": Method("step on every k gradients (FedBuff)", "nguyen2022", policy="k-batch-async(k=2)"),
    "hybrid": Method(
        "the ASU server: k gradients per step, staleness tolerance, pull interval",
        "shah2020",
        policy="hybrid(num_workers_ps_update=1, staleness_tolerance=9999, pull_weights_interval=1)",
    ),
}
