"""METHODS: a paper's method is a policy × a correction × an optimizer, with its citation."""

from dataclasses import dataclass

from straggler.algorithms.references import REFERENCES


@dataclass(frozen=True)
class Method:
    """A row of the table; pieces are written as their catalogues write them, with the paper's defaults."""

    summary: str
    paper: str  # a key of REFERENCES
    policy: str = "asynchronous"
    correction: str = "none"
    optimizer: str = "sgd"
    single: bool = False  # makes sense with one worker only

    @property
    def citation(self) -> str:
        return REFERENCES[self.paper].short

    @property
    def bibtex(self) -> str:
        return REFERENCES[self.paper].bibtex


NAG = "sgd(momentum=0.9, nesterov=True)"
DANA = "dana(momentum=0.9)"

METHODS: dict[str, Method] = {
    "sgd": Method("one worker: the baseline", "robbins1951", single=True),
    "ssgd": Method("wait for everybody, step on the mean", "chen2016", policy="synchronous"),
    "asgd": Method("apply every gradient at once", "dean2012"),
    "nag-asgd": Method("ASGD with Nesterov momentum at the server", "hakimi2019", optimizer=NAG),
    "async-adam": Method("ASGD with Adam at the server", "kingma2015", optimizer="adam"),
    "multi-asgd": Method(
        "a momentum per worker", "hakimi2019", optimizer="multi(momentum=0.9, nesterov=True)"
    ),
    "sa": Method(
        "divide a gradient by its staleness",
        "zhang2016",
        correction="staleness-aware(scale=gradient)",
        optimizer=NAG,
    ),
    "ga": Method("divide a gradient by its gap", "barkai2020", correction="gap-aware", optimizer=NAG),
    "dc-asgd": Method("guess the gradient at the model now", "zheng2017", correction="dc(lam=0.04)"),
    "dc-asgd-a": Method(
        "the same, with a λ per parameter", "zheng2017", correction="dc-adaptive(lam0=2, m=0.95)"
    ),
    "dana": Method("send the model after everybody's momentum", "hakimi2019", optimizer=DANA),
    "dana-slim": Method(
        "DANA with the momentum at the workers", "hakimi2019", optimizer="dana-slim(momentum=0.9)"
    ),
    "dana-sa": Method(
        "DANA, staleness-aware", "barkai2020", correction="staleness-aware(scale=gradient)", optimizer=DANA
    ),
    "dana-ga": Method("DANA, gap-aware", "barkai2020", correction="gap-aware", optimizer=DANA),
    "dana-dc": Method("DANA, delay-compensated", "hakimi2019", correction="dc(lam=0.04)", optimizer=DANA),
    "ssp": Method("nobody runs far ahead of the slowest", "ho2013", policy="ssp(bound=3)"),
    "k-sync": Method("the first k of each round, the rest abandoned", "dutta2018", policy="k-sync(k=2)"),
    "k-batch-sync": Method(
        "the first k gradients at this model (Rennala)", "tyurin2023", policy="k-batch-sync(k=2)"
    ),
    "k-async": Method("the first k workers, the rest goes on", "dutta2018", policy="k-async(k=2)"),
    "k-batch-async": Method("every k gradients (FedBuff)", "nguyen2022", policy="k-batch-async(k=2)"),
    "hybrid": Method(
        "the ASU server: k, tolerance, pull interval",
        "shah2020",
        policy="hybrid(num_workers_ps_update=1, staleness_tolerance=9999, pull_weights_interval=1)",
    ),
}
