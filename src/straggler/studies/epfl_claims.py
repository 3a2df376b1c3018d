"""What the EPFL report concludes, and what its code did instead.

The report's numbers are single runs. Where one seed is all there is, the spread between runs comes from the
report's own repeats: as coded its λ = 0 and λ = 2 runs are the same experiment twice, 72 pairs. One run's
standard deviation is .6 points with the data split at random and about 5 with labels split.
"""

from straggler.analysis.claims import Claim, Evidence
from straggler.analysis.statistics import at, difference, mean, nc_share, ratio
from straggler.studies.epfl_statistics import (
    CODED,
    DATASET_SPREAD,
    LABEL_SPREAD,
    WRITTEN,
    best_other,
    both_clusters,
    gained,
    half_momentum,
    labels_lose,
    logged,
    momentum_contest,
    one_costs_more,
    one_slow,
    percent_less,
)

__all__ = ["CLAIMS"]

CLAIMS = (
    Claim(
        "labels-lose",
        "Splitting labels costs 27.8 ± 8 points against splitting the data at random.",
        "Discussion; Table II, one slow worker",
        "accuracy with the data split minus with labels split, mean of nine cells, as coded",
        labels_lose(CODED),
        least=19.8,
        most=35.8,
        spread=LABEL_SPREAD / 3,
        causes=(
            Evidence("the same as written: one worker slow, no worker left alone", labels_lose(WRITTEN)),
            Evidence(
                "as coded, but all workers stop together (labels only, against the data split as coded)",
                difference(
                    one_slow(CODED, "dataset"),
                    mean(9, table="causes", protocol="common stop", column="*labels"),
                ),
            ),
        ),
        comment="Workers stopped after their own share; the slow one then trained alone on its own labels.",
    ),
    Claim(
        "one-slow-costs-more",
        "One slow worker costs about 11 ± 6 points more than all workers slow.",
        "Discussion; Table II",
        "accuracy with all slow minus with one slow, labels split, mean of nine cells, as coded",
        one_costs_more(CODED, "labels"),
        least=5,
        spread=LABEL_SPREAD * 2**0.5 / 3,
        causes=(
            Evidence("the same with the data split", one_costs_more(CODED, "dataset")),
            Evidence("the same as written, labels split", one_costs_more(WRITTEN, "labels")),
            Evidence(
                "what the tail alone costs: as coded with a common stop, minus as coded",
                difference(
                    mean(9, table="causes", protocol="common stop", column="*labels"),
                    one_slow(CODED, "labels"),
                ),
            ),
        ),
        comment="The cost is the tail in which the slow worker trains alone, not outdated gradients.",
    ),
    Claim(
        "two-workers-fall-to-60",
        "With two workers, labels split and one of them slow, about 60 % is reached, whatever the delay.",
        "Table II",
        "accuracy with two workers, one of them slow, labels split, mean of three delays, as coded",
        mean(3, table="II", protocol=CODED, row="one*", column="2 workers, labels"),
        least=50,
        most=70,
        unit="%",
        spread=2.0 / 3**0.5,
        causes=(
            Evidence(
                "the same, but both workers stop together",
                mean(3, table="causes", protocol="common stop", column="2 workers, labels"),
            ),
            Evidence(
                "the same as written: one worker slow, both stop together",
                mean(3, table="II", protocol=WRITTEN, row="one*", column="2 workers, labels"),
            ),
            Evidence(
                "both workers slow, as coded",
                mean(3, table="II", protocol=CODED, row="all*", column="2 workers, labels"),
            ),
        ),
        comment="The slow worker, with five of ten labels, trains last and alone: the others are forgotten.",
    ),
    Claim(
        "labels-not-viable",
        "Splitting labels is not a viable option.",
        "Discussion",
        "accuracy with the data split minus with labels split, synchronous, mean of three cells, as coded",
        difference(
            mean(3, table="II", protocol=CODED, row="sync", column="*dataset"),
            mean(3, table="II", protocol=CODED, row="sync", column="*labels"),
        ),
        least=3,
        spread=DATASET_SPREAD * 2**0.5 / 3**0.5,
        causes=(
            Evidence(
                "the same, asynchronous without delay",
                difference(
                    mean(3, table="II", protocol=CODED, row="async 0 ms", column="*dataset"),
                    mean(3, table="II", protocol=CODED, row="async 0 ms", column="*labels"),
                ),
            ),
        ),
        comment="A synchronous step averages over all labels; an asynchronous one follows a single worker's.",
    ),
    Claim(
        "sync-like-async",
        "Without delays synchronous and asynchronous SGD do not differ greatly.",
        "Discussion; Table II",
        "accuracy synchronous minus asynchronous at 0 ms, labels split, mean of three cells, as coded",
        difference(
            mean(3, table="II", protocol=CODED, row="sync", column="*labels"),
            mean(3, table="II", protocol=CODED, row="async 0 ms", column="*labels"),
        ),
        least=-3,
        most=3,
        spread=LABEL_SPREAD / 3**0.5,
        causes=(
            Evidence(
                "the same with the data split",
                difference(
                    mean(3, table="II", protocol=CODED, row="sync", column="*dataset"),
                    mean(3, table="II", protocol=CODED, row="async 0 ms", column="*dataset"),
                ),
            ),
        ),
        comment="The report's 85.00 for ten workers is its synchronous value; its log says 71.43.",
    ),
    Claim(
        "delay-hurts-large-clusters",
        "Delay among workers seriously deteriorates performance, especially in large clusters.",
        "Summary",
        "accuracy at 0 ms minus with all workers delayed (mean of three), ten workers, data split, as coded",
        difference(
            at(table="II", protocol=CODED, row="async 0 ms", column="10 workers, dataset"),
            mean(3, table="II", protocol=CODED, row="all*", column="10 workers, dataset"),
        ),
        least=2,
        spread=DATASET_SPREAD * (4 / 3) ** 0.5,
        comment="Equal delays change the time, not the order of arrivals: staleness stays N − 1.",
    ),
    Claim(
        "momentum-99-diverges",
        "Momentum .99 does not converge with 5 and 10 workers.",
        "Table III",
        "share of runs that did not converge, momentum .99, 5 and 10 workers, as coded",
        both_clusters(CODED),
        least=100,
        unit="%",
        exact=True,
        causes=(Evidence("the same as written (Nesterov)", both_clusters(WRITTEN)),),
        comment="A run converges or does not; all of them are counted, so there is no interval.",
    ),
    Claim(
        "momentum-9-best",
        "Momentum .9 gives the best accuracy for most delays and numbers of workers.",
        "Discussion; Tables II and III",
        "share of nine (delay, workers) pairs in which .9 is at least 0, .5 and .99, as coded",
        momentum_contest(CODED),
        least=50,
        unit="%",
        causes=(Evidence("the same as written", momentum_contest(WRITTEN)),),
    ),
    Claim(
        "momentum-half-helps",
        "Momentum .5 instead of 0 improves accuracy.",
        "Discussion; Table III",
        "accuracy at .5 minus at 0, one slow worker, labels split, mean of nine cells, as coded",
        half_momentum(CODED),
        least=0,
        spread=LABEL_SPREAD * 2**0.5 / 3,
        causes=(Evidence("the same as written", half_momentum(WRITTEN)),),
    ),
    Claim(
        "compensation-2",
        "Delay compensation improves accuracy by 7 points at λ = 2.",
        "Discussion; Table IV",
        "accuracy with compensation minus without, one slow worker, labels, mean of nine cells, as written",
        gained(WRITTEN, 2),
        least=3.5,
        spread=LABEL_SPREAD * 2**0.5 / 3,
        causes=(Evidence("the same as coded, where compensation never runs", gained(CODED, 2)),),
        comment="As coded both columns are the same experiment, so they differ by noise alone, and the "
        "report's own tables give a loss, not a gain.",
    ),
    Claim(
        "compensation-5",
        "Delay compensation improves accuracy by 3 points at λ = 5.",
        "Discussion; Table IV",
        "accuracy with compensation minus without, one slow worker, labels, mean of nine cells, as written",
        gained(WRITTEN, 5),
        least=1.5,
        spread=LABEL_SPREAD * 2**0.5 / 3,
        causes=(Evidence("the same as coded, where compensation never runs", gained(CODED, 5)),),
    ),
    Claim(
        "splitting-saves-time",
        "Splitting the data saves up to 80 % of the training time.",
        "Summary; the log",
        "time with the data split, less than without a split, momentum .9, as coded",
        percent_less(logged("seconds", "dataset"), logged("seconds", "no split")),
        least=70,
        most=90,
        said=77.9,
        unit="%",
        exact=True,
        causes=(
            Evidence(
                "the same for equal work: as many gradients without a split as with one",
                percent_less(
                    logged("seconds", "dataset"),
                    at("seconds", table="causes", protocol="equal work", row="lenet5, momentum 0.9"),
                ),
            ),
            Evidence(
                "gradients without a split for each one with it",
                ratio(logged("gradients", "no split"), logged("gradients", "dataset")),
            ),
            Evidence(
                "accuracy without a split minus with the data split, equal work",
                difference(
                    at(table="causes", protocol="equal work", row="lenet5, momentum 0.9"),
                    logged("value", "dataset"),
                ),
            ),
        ),
        comment="Without a split every worker passes over all the data: N times the work.",
    ),
    Claim(
        "gaussian-99-diverges",
        "With Gaussian delays momentum .99 gives 10 % with 5 and 10 workers, whatever else is chosen.",
        "Tables V and VII",
        "share of runs that did not converge, momentum .99, 5 workers (Table VII), as coded",
        nc_share(12, table="VII", protocol=CODED, row="m = 0.99*"),
        least=100,
        unit="%",
        exact=True,
        causes=(
            Evidence("10 workers (Table V)", nc_share(12, table="V", protocol=CODED, row="m = 0.99*")),
            Evidence("2 workers (Table VI)", nc_share(12, table="VI", protocol=CODED, row="m = 0.99*")),
        ),
    ),
    Claim(
        "large-model-diverges",
        "With a larger model more asynchronous workers lead to vanishing gradients.",
        "Discussion; the log, large network, momentum .9",
        "share of runs that did not converge, 5 workers, three splits, as coded",
        nc_share(3, table="log", protocol=CODED, row="cnn, momentum 0.9"),
        least=100,
        unit="%",
        exact=True,
        comment="The loss becomes infinite: gradients explode, they do not vanish.",
    ),
    Claim(
        "adam-labels",
        "Adam does not converge with labels split.",
        "the log, LeNet-5",
        "accuracy of Adam with labels split, 5 workers, as coded (β₁ = .99)",
        logged("value", "labels", optimizer="adam"),
        most=12,
        unit="%",
        spread=LABEL_SPREAD,
        causes=(Evidence("the same with Adam's own β₁ = .9", logged("value", "labels", WRITTEN, "adam")),),
        comment="The momentum argument reached Adam as at least .99.",
    ),
    Claim(
        "landscape-9-best",
        "Of the momenta 0, .5, .9, .95 and .99 the best minimum is found with .9.",
        "Discussion; figures 1 and 2",
        "accuracy at .9 minus the best of the other four, three workers that share the data, as coded",
        difference(
            at(table="landscape", protocol=CODED, row="m = 0.9"),
            best_other(CODED),
        ),
        least=0,
        spread=DATASET_SPREAD * 2**0.5,
    ),
    Claim(
        "landscape-half-like-none",
        "Momentum .5 converges nearly as no momentum does.",
        "Discussion; figures 1 and 2",
        "accuracy at .5 minus at 0, three workers that share the data, as coded",
        difference(
            at(table="landscape", protocol=CODED, row="m = 0.5"),
            at(table="landscape", protocol=CODED, row="m = 0"),
        ),
        least=-1,
        most=1,
        spread=DATASET_SPREAD * 2**0.5,
    ),
)
