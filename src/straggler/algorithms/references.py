"""The papers behind the methods, as BibTeX."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Reference:
    """A paper, with the fields of its BibTeX entry."""

    key: str
    authors: str
    title: str
    where: str  # journal, conference or archive
    year: int

    @property
    def short(self) -> str:
        """Return family names and year, as in Dutta et al. 2018."""
        names = self.authors.split(" and ")
        first = names[0].split(",")[0]
        more = "" if len(names) == 1 else f" and {names[1].split(',')[0]}" if len(names) == 2 else " et al."
        return f"{first}{more} {self.year}"

    @property
    def bibtex(self) -> str:
        kind, field = (
            ("article", "journal")
            if self.where.startswith(("The Annals", "arXiv"))
            else ("inproceedings", "booktitle")
        )
        if "report" in self.where:
            kind, field = "techreport", "institution"
        return (
            f"@{kind}{{{self.key},\n"
            f"  author = {{{self.authors}}},\n"
            f"  title = {{{self.title}}},\n"
            f"  {field} = {{{self.where}}},\n"
            f"  year = {{{self.year}}},\n"
            f"}}"
        )


_ALL = (
    Reference(
        "robbins1951",
        "Robbins, Herbert and Monro, Sutton",
        "A Stochastic Approximation Method",
        "The Annals of Mathematical Statistics",
        1951,
    ),
    Reference(
        "dean2012",
        "Dean, Jeffrey and Corrado, Greg and Monga, Rajat and others",
        "Large Scale Distributed Deep Networks",
        "Advances in Neural Information Processing Systems",
        2012,
    ),
    Reference(
        "ho2013",
        "Ho, Qirong and Cipar, James and Cui, Henggang and others",
        "More Effective Distributed ML via a Stale Synchronous Parallel Parameter Server",
        "Advances in Neural Information Processing Systems",
        2013,
    ),
    Reference(
        "kingma2015",
        "Kingma, Diederik P. and Ba, Jimmy",
        "Adam: A Method for Stochastic Optimization",
        "International Conference on Learning Representations",
        2015,
    ),
    Reference(
        "chen2016",
        "Chen, Jianmin and Pan, Xinghao and Monga, Rajat and Bengio, Samy and Jozefowicz, Rafal",
        "Revisiting Distributed Synchronous {SGD}",
        "arXiv preprint arXiv:1604.00981",
        2016,
    ),
    Reference(
        "zhang2016",
        "Zhang, Wei and Gupta, Suyog and Lian, Xiangru and Liu, Ji",
        "Staleness-Aware Async-{SGD} for Distributed Deep Learning",
        "International Joint Conference on Artificial Intelligence",
        2016,
    ),
    Reference(
        "zheng2017",
        "Zheng, Shuxin and Meng, Qi and Wang, Taifeng and others",
        "Asynchronous Stochastic Gradient Descent with Delay Compensation",
        "International Conference on Machine Learning",
        2017,
    ),
    Reference(
        "dutta2018",
        "Dutta, Sanghamitra and Joshi, Gauri and Ghosh, Soumyadip and Dube, Parijat and Nagpurkar, Priya",
        "Slow and Stale Gradients Can Win the Race: Error-Runtime Trade-offs in Distributed {SGD}",
        "International Conference on Artificial Intelligence and Statistics",
        2018,
    ),
    Reference(
        "hakimi2019",
        "Hakimi, Ido and Barkai, Saar and Gabel, Moshe and Schuster, Assaf",
        "Taming Momentum in a Distributed Asynchronous Environment",
        "arXiv preprint arXiv:1907.11612",
        2019,
    ),
    Reference(
        "barkai2020",
        "Barkai, Saar and Hakimi, Ido and Schuster, Assaf",
        "Gap-Aware Mitigation of Gradient Staleness",
        "International Conference on Learning Representations",
        2020,
    ),
    Reference(
        "nguyen2022",
        "Nguyen, John and Malik, Kshitiz and Zhan, Hongyuan and others",
        "Federated Learning with Buffered Asynchronous Aggregation",
        "International Conference on Artificial Intelligence and Statistics",
        2022,
    ),
    Reference(
        "tyurin2023",
        "Tyurin, Alexander and Richtárik, Peter",
        "Optimal Time Complexities of Parallel Stochastic Optimization Methods "
        "Under a Fixed Computation Model",
        "Advances in Neural Information Processing Systems",
        2023,
    ),
    Reference(
        "shah2020",
        "Shah, Jay and Hatgadkar, Rishabh",
        "Improving Performance for Distributed {SGD} using {Ray}",
        "Course report, Arizona State University",
        2020,
    ),
)

REFERENCES: dict[str, Reference] = {reference.key: reference for reference in _ALL}
