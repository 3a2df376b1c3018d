"""METHODS: a paper's method is a policy × a correction × an optimizer, with its citation."""

from dataclasses import dataclass

__all__ = ["METHODS", "Method"]


@dataclass(frozen=True)
class Method:
    """A row of the table; pieces are written as their catalogues write them."""

    summary: str
    policy: str
    correction: str = "none"
    optimizer: str = "sgd"
    single: bool = False  # makes sense with one worker only
    citation: str = ""


METHODS: dict[str, Method] = {
    "sgd": Method(
        "one worker: the baseline",
        policy="asynchronous",
        single=True,
        citation="Robbins and Monro, A stochastic approximation method, Ann. Math. Stat. 1951",
    ),
    "ssgd": Method(
        "wait for everybody, step on the mean",
        policy="synchronous",
        citation="Chen et al., Revisiting distributed synchronous SGD, 2016",
    ),
    "asgd": Method(
        "apply every gradient at once",
        policy="asynchronous",
        citation="Dean et al., Large scale distributed deep networks, NIPS 2012",
    ),
}
