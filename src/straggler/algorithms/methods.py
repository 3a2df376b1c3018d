"""METHODS: each method of a paper, by the stages of a message that it changes, with its citation."""

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
    work: str = "gradient"
    channel: str = "exact"
    aggregation: str = "mean"
    lr: float | None = None  # the paper's learning rate of the server, where it has one
    single: bool = False  # whether it requires exactly one worker

    @property
    def stages(self) -> str:
        """Policy, correction and optimizer, and the other stages that the method changes, as text."""
        others = {"gradient": self.work, "exact": self.channel, "mean": self.aggregation}
        changed = [stage for default, stage in others.items() if stage != default]
        return " × ".join([self.policy, self.correction, self.optimizer, *changed])

    @property
    def citation(self) -> str:
        return REFERENCES[self.paper].short

    @property
    def bibtex(self) -> str:
        return REFERENCES[self.paper].bibtex


NAG = "sgd(momentum=0.9, nesterov=True)"
DANA = "dana(momentum=0.9)"
LOCAL = "local(steps=10, lr=0.01)"

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
    "delay-adaptive": Method(
        "ASGD with a smaller learning rate for messages staler than N",
        "mishchenko2022",
        correction="delay-adaptive",
    ),
    "ringmaster": Method(
        "ASGD that drops gradients staler than a bound", "maranjyan2025a", policy="ringmaster(max_delay=8)"
    ),
    "ringmaster-restart": Method(
        "Ringmaster that restarts jobs whose gradients would be too stale",
        "maranjyan2025a",
        policy="ringmaster(max_delay=8, restart=True)",
    ),
    "rennala": Method(
        "step on the first S gradients of the current model, cancel the others",
        "tyurin2023",
        policy="k-batch-sync(k=8)",
    ),
    "malenia": Method(
        "step on the mean of the workers' means, when every worker has delivered",
        "tyurin2023",
        policy="malenia",
        aggregation="worker-means",
    ),
    "ringleader": Method(
        "step with the workers' means of a round, without waiting or dropping",
        "maranjyan2025b",
        policy="ringleader",
        aggregation="ringleader",
    ),
    "ia2sgd": Method(
        "step on the mean of every worker's latest gradient", "wang2024dude", aggregation="latest"
    ),
    "aced": Method(
        "step on the mean of the workers' latest gradients that are not too stale",
        "chang2025",
        aggregation="latest(max_staleness=16)",
    ),
    "ca2fl": Method(
        "step on every k messages, calibrated by every worker's cached message",
        "wang2024ca2fl",
        policy="k-batch-async(k=2)",
        work=LOCAL,
        aggregation="cached",
        lr=1.0,
    ),
    "local-sgd": Method(
        "local steps at the workers, then the mean of their models (FedAvg)",
        "mcmahan2017",
        policy="synchronous",
        work=LOCAL,
        lr=1.0,
    ),
    "fedprox": Method(
        "FedAvg whose local steps are pulled towards the server's model",
        "li2020",
        policy="synchronous",
        work="local(steps=10, lr=0.01, proximal=0.01)",
        lr=1.0,
    ),
    "fedbuff": Method(
        "step on every k messages of local steps, weighted by staleness",
        "nguyen2022",
        policy="k-batch-async(k=2)",
        correction="polynomial(a=0.5)",
        work=LOCAL,
        lr=1.0,
    ),
    "fedasync": Method(
        "mix the server's model with each arriving model, weighted by staleness",
        "xie2019",
        correction="mixing + polynomial(a=0.5)",
        work="local(steps=10, lr=0.01, proximal=0.005)",
        lr=0.6,
    ),
    "diloco": Method(
        "local AdamW steps, outer Nesterov momentum",
        "douillard2023",
        policy="synchronous",
        optimizer=NAG,
        work="local(steps=20, lr=0.001, optimizer=adamw, keep=True)",
        lr=0.7,
    ),
    "async-diloco": Method(
        "asynchronous DiLoCo: Delayed Nesterov, fewer local steps on slow workers",
        "liu2024",
        optimizer="delayed-nesterov(momentum=0.9)",
        work="local(steps=20, lr=0.001, optimizer=adamw, balance=True, keep=True)",
        lr=0.7,
    ),
    "slowmo": Method(
        "local steps, then slow momentum on the mean model",
        "wang2020",
        policy="synchronous",
        optimizer="sgd(momentum=0.5)",
        work="local(steps=12, lr=0.01)",
        lr=1.0,
    ),
    "easgd": Method(
        "workers keep their own models, which springs tie to the server's",
        "zhang2015",
        work="elastic(steps=10, lr=0.01)",
        lr=1.0,
    ),
    "ormo": Method(
        "momentum in the order of the gradients' versions", "shi2024", optimizer="ormo(momentum=0.9)"
    ),
    "smega2": Method(
        "one momentum for all workers, which receive a prediction",
        "cohen2022",
        optimizer="smega2(momentum=0.9)",
    ),
    "lookahead": Method(
        "send workers the model ahead along the momentum",
        "hakimi2019",
        optimizer="predict(momentum=0.9, rule=lookahead)",
    ),
    "weight-prediction": Method(
        "send workers the model that is predicted for their arrival",
        "chen2018",
        optimizer="predict(momentum=0.9, rule=spectrain)",
    ),
    "muon": Method("ASGD with orthogonalised momentum", "jordan2024", optimizer="muon"),
    "ringmaster-muon": Method(
        "Ringmaster with orthogonalised momentum",
        "sadiev2026",
        policy="ringmaster(max_delay=8)",
        optimizer="muon",
    ),
    "fadas": Method(
        "AMSGrad on every k messages, slower after a long delay",
        "wang2024fadas",
        policy="k-batch-async(k=5)",
        optimizer="fadas",
        work=LOCAL,
    ),
    "dssp": Method(
        "stale-synchronous with a bound that adapts to the workers' speeds",
        "zhao2019",
        policy="dssp(lower=3, upper=15)",
    ),
    "paced": Method(
        "start jobs only as far ahead as a staleness bound allows, use the oldest first",
        "fu2025",
        policy="paced(batch=2, staleness=4, window=1)",
    ),
    "inverse-frequency": Method(
        "ASGD that weights a worker's gradients by the inverse of its share",
        "leconte2024",
        aggregation="inverse-frequency",
    ),
}
