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
    Reference(
        "mishchenko2022",
        "Mishchenko, Konstantin and Bach, Francis and Even, Mathieu and Woodworth, Blake",
        "Asynchronous {SGD} Beats Minibatch {SGD} Under Arbitrary Delays",
        "Advances in Neural Information Processing Systems",
        2022,
    ),
    Reference(
        "maranjyan2025a",
        "Maranjyan, Artavazd and Tyurin, Alexander and Richtárik, Peter",
        "Ringmaster {ASGD}: The First Asynchronous {SGD} with Optimal Time Complexity",
        "International Conference on Machine Learning",
        2025,
    ),
    Reference(
        "maranjyan2025b",
        "Maranjyan, Artavazd and Richtárik, Peter",
        "Ringleader {ASGD}: The First Asynchronous {SGD} with Optimal Time Complexity "
        "under Data Heterogeneity",
        "arXiv preprint arXiv:2509.22860",
        2025,
    ),
    Reference(
        "wang2024dude",
        "Wang, Xiaolu and others",
        "Dual-Delayed Asynchronous {SGD} for Arbitrarily Heterogeneous Data",
        "arXiv preprint arXiv:2405.16966",
        2024,
    ),
    Reference(
        "chang2025",
        "Chang, Xiangyu and Yao, Manyi and Krishnamurthy, Srikanth V. and Shelton, Christian R. and "
        "Chakraborty, Anirban and Swami, Ananthram and Oymak, Samet and Roy-Chowdhury, Amit",
        "Mitigating Participation Imbalance Bias in Asynchronous Federated Learning",
        "arXiv preprint arXiv:2511.19066",
        2025,
    ),
    Reference(
        "wang2024ca2fl",
        "Wang, Yujia and others",
        "Tackling the Data Heterogeneity in Asynchronous Federated Learning with Cached Update Calibration",
        "International Conference on Learning Representations",
        2024,
    ),
    Reference(
        "mcmahan2017",
        "McMahan, Brendan and Moore, Eider and Ramage, Daniel and others",
        "Communication-Efficient Learning of Deep Networks from Decentralized Data",
        "International Conference on Artificial Intelligence and Statistics",
        2017,
    ),
    Reference(
        "li2020",
        "Li, Tian and Sahu, Anit Kumar and Zaheer, Manzil and others",
        "Federated Optimization in Heterogeneous Networks",
        "Conference on Machine Learning and Systems",
        2020,
    ),
    Reference(
        "xie2019",
        "Xie, Cong and Koyejo, Sanmi and Gupta, Indranil",
        "Asynchronous Federated Optimization",
        "arXiv preprint arXiv:1903.03934",
        2019,
    ),
    Reference(
        "douillard2023",
        "Douillard, Arthur and others",
        "{DiLoCo}: Distributed Low-Communication Training of Language Models",
        "arXiv preprint arXiv:2311.08105",
        2023,
    ),
    Reference(
        "liu2024",
        "Liu, Bo and others",
        "Asynchronous Local-{SGD} Training for Language Modeling",
        "arXiv preprint arXiv:2401.09135",
        2024,
    ),
    Reference(
        "shi2024",
        "Shi, Chang-Wei and others",
        "Ordered Momentum for Asynchronous {SGD}",
        "Advances in Neural Information Processing Systems",
        2024,
    ),
    Reference(
        "cohen2022",
        "Cohen, Refael and Hakimi, Ido and Schuster, Assaf",
        "{SMEGA2}: Distributed Asynchronous Deep Neural Network Training With a Single Momentum Buffer",
        "International Conference on Parallel Processing",
        2022,
    ),
    Reference(
        "zhang2015",
        "Zhang, Sixin and Choromanska, Anna and LeCun, Yann",
        "Deep Learning with Elastic Averaging {SGD}",
        "Advances in Neural Information Processing Systems",
        2015,
    ),
    Reference(
        "wang2020",
        "Wang, Jianyu and others",
        "{SlowMo}: Improving Communication-Efficient Distributed {SGD} with Slow Momentum",
        "International Conference on Learning Representations",
        2020,
    ),
    Reference(
        "chen2018",
        "Chen, Chi-Chung and Yang, Chia-Lin and Cheng, Hsiang-Yun",
        "Efficient and Robust Parallel {DNN} Training through Model Parallelism on Multi-{GPU} Platform",
        "arXiv preprint arXiv:1809.02839",
        2018,
    ),
    Reference(
        "jordan2024",
        "Jordan, Keller and others",
        "Muon: An Optimizer for Hidden Layers in Neural Networks",
        "Technical report, kellerjordan.github.io",
        2024,
    ),
    Reference(
        "sadiev2026",
        "Sadiev, Abdurakhmon and Maranjyan, Artavazd and Ilin, Ivan and Richtárik, Peter",
        "Ringmaster {LMO}: Asynchronous Linear Minimization Oracle Momentum Method",
        "arXiv preprint arXiv:2605.18174",
        2026,
    ),
    Reference(
        "wang2024fadas",
        "Wang, Yujia and others",
        "{FADAS}: Towards Federated Adaptive Asynchronous Optimization",
        "International Conference on Machine Learning",
        2024,
    ),
    Reference(
        "zhao2019",
        "Zhao, Xing and others",
        "Dynamic Stale Synchronous Parallel Distributed Training for Deep Learning",
        "International Conference on Distributed Computing Systems",
        2019,
    ),
    Reference(
        "fu2025",
        "Fu, Wei and others",
        "{AReaL}: A Large-Scale Asynchronous Reinforcement Learning System for Language Reasoning",
        "arXiv preprint arXiv:2505.24298",
        2025,
    ),
    Reference(
        "leconte2024",
        "Leconte, Louis and others",
        "Queueing Dynamics of Asynchronous Federated Learning",
        "International Conference on Artificial Intelligence and Statistics",
        2024,
    ),
)

REFERENCES: dict[str, Reference] = {reference.key: reference for reference in _ALL}
