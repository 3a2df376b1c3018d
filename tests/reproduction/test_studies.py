"""Studies: grids that build, the sources' own numbers, verdicts that follow from what was measured."""

import json
import math
import pickle
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from straggler.analysis import statistics
from straggler.analysis.claims import PERCENT, Claim, judge, measure
from straggler.analysis.intervals import Interval, Spread, mean_interval
from straggler.analysis.study_figures import cell_means
from straggler.analysis.study_tables import (
    Layout,
    as_csv,
    as_latex,
    as_markdown,
    entries,
    latex_table,
    time_rows,
)
from straggler.cli.study import study
from straggler.config.registry import InputError
from straggler.experiment import Experiment
from straggler.reproduction import ASU, EPFL, GAP_AWARE, STUDIES, Study
from straggler.reproduction.more_tables import shown
from straggler.reproduction.page import account, coverage, draw, judged, source_summaries, tally
from straggler.reproduction.papers.asu.numbers import BASELINES
from straggler.reproduction.papers.gap_aware.claims import beyond
from straggler.reproduction.study import Scale
from straggler.sweeps.grid import Cell, plan_runs
from straggler.sweeps.summaries import read_summaries
from straggler.timing.clusters import Repetition

NAMES = list(STUDIES)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("scale", ["default", "paper"])
def test_every_experiment_can_be_built_and_every_table_has_cells(name: str, scale: str) -> None:
    study = STUDIES[name]
    cells = study.chosen(scale)  # type: ignore[arg-type]
    for cell in cells:
        task = plan_runs([cell], [0])[0]
        order = pickle.loads(pickle.dumps(task.order))  # as it goes to a process, which finds the same
        assert (order if isinstance(order, Repetition) else Experiment(**order)).id == task.id
    if scale == "default":
        assert {cell.labels["table"] for cell in cells} == set(study.tables)
    names = [tuple(cell.labels.values()) for cell in cells]
    assert len(set(names)) == len(names), "two cells of one name would be one row"


@pytest.mark.parametrize("name", NAMES)
def test_quick_is_a_few_short_cells(name: str) -> None:
    cells = STUDIES[name].chosen("default", quick=True)
    assert 4 <= len(cells) <= 16
    for cell in cells:
        experiment = cell.experiment(0)
        assert (experiment.epochs or 0) <= 0.05 or (experiment.gradients or 1e9) <= 100


def test_an_unknown_table_is_refused_with_those_there_are() -> None:
    with pytest.raises(InputError, match=r"VIII.*it has II"):
        EPFL.chosen("default", ["VIII"])


def test_only_the_cells_with_a_text_in_their_labels() -> None:
    cells = EPFL.chosen("default", ["II"], only=["as coded", "2 workers, labels"])
    assert [cell.labels["row"] for cell in cells][:3] == ["sync", "async 0 ms", "all 30 ms"] and len(
        cells
    ) == 8
    with pytest.raises(InputError, match="none of the 73 labels has it; they are 'II'"):
        EPFL.chosen("default", only=["as coded", "7 workers"])


def cell_of(study: Study, table: str, row: str, column: str, protocol: str) -> Cell:
    wanted = {"table": table, "protocol": protocol, "row": row, "column": column}
    (found,) = [cell for cell in study.chosen("default") if cell.labels == wanted]
    return found


@pytest.mark.parametrize(
    ("table", "row", "column", "accuracy"),
    [
        ("II", "sync", "2 workers, dataset", 87.5),
        ("II", "async 0 ms", "5 workers, labels", 76.4),
        ("II", "all 60 ms", "10 workers, dataset", 10.0),
        ("II", "one 90 ms", "10 workers, labels", 51.91),
        ("III", "60 ms", "10 workers, m = 0.5", 77.97),
        ("III", "90 ms", "2 workers, m = 0.99", 34.03),
        ("IV", "60 ms", "5 workers, λ = 5", 74.12),
        ("V", "m = 0.9, 60 ms", "dataset, λ = 2", 50.07),
        ("VI", "m = 0.99, 90 ms", "dataset, λ = 0", 58.83),
        ("VII", "m = 0.5, 90 ms", "labels, λ = 2", 77.0),
        ("log", "lenet5, adam", "labels", 10.0),
        ("log-cnn", "cnn, momentum 0", "dataset", 89.28),
    ],
)
def test_epfl_numbers_are_the_reports(table: str, row: str, column: str, accuracy: float) -> None:
    for protocol in ("as coded", "as written"):
        assert cell_of(EPFL, table, row, column, protocol).source == accuracy


@pytest.mark.parametrize(
    ("table", "row", "accuracy", "seconds"),
    [
        ("4", "baseline sync", 95.38, 33.24),
        ("6", "baseline async", 29.18, 283.07),
        ("8", "tolerance = 10", 95.36, 32.13),
        ("10", "k = 2", 48.56, 62.43),
        ("12", "lr = 0.01", 67.3, 196.039),
    ],
)
def test_asu_numbers_are_the_reports(table: str, row: str, accuracy: float, seconds: float) -> None:
    (found,) = [
        c
        for c in ASU.chosen("default")
        if (c.labels["table"], c.labels["row"], c.labels["protocol"]) == (table, row, "as coded")
    ]
    assert (found.source, found.source_metrics["seconds"]) == (accuracy, seconds)


def test_asu_baselines_are_also_run_in_real_time_on_processes_and_ray() -> None:
    wall = ASU.chosen("default", ["wall"])
    assert sorted(str(cell.labels["protocol"]) for cell in wall) == ["processes"] * 6 + ["ray"] * 6
    for cell in wall:
        assert cell.experiment(0).engine == cell.labels["protocol"]
        said = [b.source for b in ASU.chosen("default", ["4", "5", "6"])]
        assert cell.source in (said if cell.labels["protocol"] == "ray" else [None])


def test_as_coded_one_slow_worker_is_everyone_and_one_twice_and_stops_after_its_share() -> None:
    coded = cell_of(EPFL, "II", "one 30 ms", "5 workers, labels", "as coded").experiment(0)
    written = cell_of(EPFL, "II", "one 30 ms", "5 workers, labels", "as written").experiment(0)
    assert [law.workers for law in coded.delay] == [None, (0,)]
    assert [law.workers for law in written.delay] == [(0,)]
    assert (coded.stop, written.stop) == ("each", "all")
    assert (coded.nesterov, written.nesterov) == (False, True)


def test_compensation_never_runs_as_coded_so_its_cells_are_those_without() -> None:
    compensated = cell_of(EPFL, "IV", "30 ms", "2 workers, λ = 2", "as coded").experiment(0)
    plain = cell_of(EPFL, "II", "one 30 ms", "2 workers, labels", "as coded").experiment(0)
    written = cell_of(EPFL, "IV", "30 ms", "2 workers, λ = 2", "as written").experiment(0)
    assert compensated.id == plain.id
    assert str(written.correction) == "dc(lam=2.0)"
    runs = plan_runs([c for c in EPFL.chosen("default") if c.labels["protocol"] == "as coded"], [0])
    assert len(runs) < len([c for c in EPFL.chosen("default") if c.labels["protocol"] == "as coded"]) - 80


def test_sums_and_means_of_one_gradient_are_one_run() -> None:
    asynchronous = {
        c.labels["protocol"]: c.experiment(0).id
        for c in ASU.chosen("default", ["5"])
        if c.labels["row"] == "baseline async"
    }
    assert len(asynchronous) == 2 and len(set(asynchronous.values())) == 1
    assert all(c.experiment(0).gradients == 500 * c.experiment(0).workers for c in ASU.chosen("default"))


def test_paper_scale_is_the_papers_set_up() -> None:
    wide = [c for c in GAP_AWARE.chosen("paper", ["2"]) if c.labels["protocol"] == "wrn-16-4, CIFAR-10"][
        -1
    ].experiment(0)
    assert (wide.epochs, wide.lr, wide.batch_size, wide.warmup, wide.weight_decay) == (200, 0.1, 128, 5, 5e-4)
    assert "augment" in str(wide.dataset)


def test_the_share_of_slow_batches_is_the_papers() -> None:
    assert beyond(1.25, 0.1) == pytest.approx(0.0093, abs=2e-4)
    assert beyond(1.25, 0.6) == pytest.approx(0.28, abs=1e-3)


def rows(values: dict[int, dict[str, float]], **more: object) -> pl.DataFrame:
    """By seed, then by row: hand-made summaries of one table."""
    return pl.DataFrame(
        [
            {
                "table": "T",
                "protocol": "p",
                "row": row,
                "column": "c",
                "seed": seed,
                "value": value,
                "converged": value > 12,
                **more,
            }
            for seed, found in values.items()
            for row, value in found.items()
        ]
    )


def claim(**bounds: Any) -> Claim:
    gain = statistics.difference(statistics.at(table="T", row="a"), statistics.at(table="T", row="b"))
    return Claim("k", "a beats b", "here", "a minus b", gain, **bounds)


NOTHING = pl.DataFrame()


@pytest.mark.parametrize(
    ("gains", "verdict"),
    [
        ((5.0, 5.2, 4.8), "replicated"),
        ((-5.0, -5.2, -4.8), "not replicated"),
        ((5.0, -5.2, 4.8), "inconclusive"),
        ((5.0,), "inconclusive"),  # one seed tells nothing
    ],
)
def test_verdicts_follow_from_the_interval(gains: tuple[float, ...], verdict: str) -> None:
    measured = rows({seed: {"a": 50 + gain, "b": 50.0} for seed, gain in enumerate(gains)})
    assert judge(claim(least=0.0), measured, NOTHING).verdict == verdict


def test_one_seed_with_a_known_spread_can_tell() -> None:
    measured = rows({0: {"a": 55.0, "b": 50.0}})
    for spread, verdict in (
        (Spread(1.0, 3), "replicated"),
        (Spread(4.0, 3), "inconclusive"),
        (Spread(2.0, 1000), "replicated"),
        (Spread(2.0, 2), "inconclusive"),  # known from too little
    ):
        assert judge(claim(least=0.0, spread=spread), measured, NOTHING).verdict == verdict


def test_a_number_says_that_lost_runs_are_in_it() -> None:
    """One of six runs did not converge: it counts with the accuracy that it has, and that is said."""
    good = {seed: {"a": 55.0, "b": 50.0} for seed in range(3)}
    for measured, lost in ((rows(good), False), (rows(good | {2: {"a": 55.0, "b": 10.0}}), True)):
        found = judge(claim(least=0.0, comment="So it is."), measured, NOTHING)
        assert found.measured is not None and found.measured.with_lost == lost
        assert ("NC among its runs" in account([found])) == lost


def test_what_is_computed_has_no_seeds() -> None:
    computed = Claim(
        "k", "pi", "here", "pi", statistics.known(3.14), least=3, exact=True, comment="It is more."
    )
    found = judge(computed, NOTHING, NOTHING)
    assert found.verdict == "replicated" and found.effect is not None and found.effect.seeds == 0
    assert "(computed, not run)" in account([found])


@pytest.mark.parametrize("other", [{"dry_run": True}, {"only": ["as coded"]}])
def test_what_draws_all_that_was_run_takes_no_choice_of_runs(other: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="leave one out"):
        study("epfl", draw_only=True, **other)


def test_verdicts_are_counted() -> None:
    measured = rows({seed: {"a": 55.0 + seed, "b": 50.0} for seed in range(3)})
    found = [judge(claim(least=least), measured, NOTHING) for least in (0.0, 0.0, 50.0)]
    found.append(judge(claim(least=0.0), NOTHING, NOTHING))
    assert tally(found) == "4 claims: 2 replicated, 1 not replicated, 1 not measured"
    assert account(found).startswith("4 claims: 2 replicated")


def test_differences_are_taken_within_a_seed() -> None:
    noisy = rows({seed: {"a": 50 + 10 * seed + 1, "b": 50.0 + 10 * seed} for seed in range(3)})
    found = judge(claim(least=0.5), noisy, NOTHING)
    assert found.verdict == "replicated" and found.effect is not None
    assert found.effect.low == pytest.approx(1.0)


def test_a_seed_without_all_its_cells_does_not_count() -> None:
    measured = rows({0: {"a": 55.0, "b": 50.0}, 1: {"a": 90.0}})
    found = judge(claim(least=0.0), measured, NOTHING).effect
    assert found is not None and found.seeds == 1
    assert judge(claim(least=0.0), rows({0: {"a": 1.0}}), NOTHING).verdict == "not measured"


def test_the_interval_in_words() -> None:
    assert mean_interval([1.0]).low == -math.inf
    assert str(Interval(1.0, 0.5, 1.5, 3)) == "1.00 [0.50, 1.50]"
    assert str(Interval(1.25, 1.249, 1.251, 3)) == "1.250 [1.249, 1.251]"
    pair = mean_interval([10.0, 20.0])
    assert str(pair) == "15.00 (10.00 and 20.00)" and pair.bar == 5
    assert str(mean_interval([2.0, 2.0])) == "2.00"


def test_an_interval_ends_where_nothing_can_be() -> None:
    wide = mean_interval([1.0, 50.0, 99.0])
    assert wide.low < 0 and wide.high > 100
    assert (wide.within(*PERCENT).low, wide.within(*PERCENT).high) == (0, 100)
    assert mean_interval([5.0]).within(*PERCENT).low == -math.inf  # nothing is known of one seed
    measured = rows({seed: {"a": 100.0 * (seed > 0), "b": 0.0} for seed in range(3)})
    found = judge(claim(least=0.0), measured, NOTHING).effect
    assert found is not None and found.high == 100


def test_a_claim_says_where_its_number_must_lie() -> None:
    assert claim(least=3.0).bounds == "at least 3" and claim(most=-1.0).bounds == "at most -1"
    assert claim(least=5.0, most=17.5).bounds == "from 5 to 17.5"
    measured = rows({seed: {"a": 55.0 + seed, "b": 50.0} for seed in range(3)})
    told = judge(claim(least=3.0, comment="So it is."), measured, NOTHING)
    assert "It must be at least 3." in account([told])
    assert "| at least 3 |" in account([judge(claim(least=3.0), measured, NOTHING)])


def test_what_is_missing_of_a_study_is_said() -> None:
    cells = [Cell({"table": "T", "protocol": "p", "row": row, "column": "c"}, {}) for row in "ab"]
    cells += [Cell({"table": "U", "protocol": protocol, "row": "a", "column": "c"}, {}) for protocol in "pq"]
    two = rows({0: {"a": 1.0, "b": 1.0}, 1: {"a": 1.0}})
    other = rows({0: {"a": 1.0}}).with_columns(table=pl.lit("U"))
    assert coverage(cells, pl.concat([two, other])) == (
        "Seeds of each table: 1: T (another begun), U p; none whole: U q."
    )


def test_a_cell_that_is_too_dear_for_more_seeds_is_not_missing_from_them() -> None:
    labels = {"table": "T", "protocol": "p", "column": "c"}
    cells = [Cell(labels | {"row": "a"}, {}), Cell(labels | {"row": "b"}, {}, seeds=1)]
    assert coverage(cells, rows({0: {"a": 1.0, "b": 1.0}, 1: {"a": 1.0}})) == "Seeds of each table: 2: T."
    assert (
        coverage(cells, rows({0: {"b": 1.0}, 1: {"a": 1.0}})) == "Seeds of each table: 1: T (another begun)."
    )


WINS = [(statistics.at(row="a"), [statistics.at(row="b")])]


@pytest.mark.parametrize(
    "statistic",
    [
        statistics.shares_won(WINS),
        statistics.across(min, statistics.at(row="a"), statistics.at(row="b")),
        statistics.across(max, statistics.at(row="b"), statistics.at(row="a")),
        statistics.mean(2),
    ],
)
def test_a_number_that_rests_on_a_lost_run_says_so(statistic: Any) -> None:
    """Also where the lost run is one that is only compared with."""
    found = measure(statistic, rows({0: {"a": 80.0, "b": 10.0}, 1: {"a": 80.0, "b": 70.0}}))
    assert found is not None and found.with_lost and found.interval.seeds == 2
    found = measure(statistic, rows({0: {"a": 80.0, "b": 60.0}, 1: {"a": 80.0, "b": 70.0}}))
    assert found is not None and not found.with_lost


def test_lost_runs_are_left_out_of_means_where_others_were_not() -> None:
    measured = rows({0: {"a": 80.0, "b": 10.0}, 1: {"a": 10.0, "b": 10.0}}).with_columns(source=pl.lit(None))
    assert dict(cell_means(measured).select("row", "value").iter_rows()) == {"a": 80.0, "b": 10.0}
    assert (
        shown(measured.filter(row="a"), "value") == "80.00"
        and shown(measured.filter(row="b"), "value") == "10.00"
    )


def test_a_rays_time_is_not_that_of_processes() -> None:
    wall = [cell for cell in ASU.chosen("default") if cell.labels["table"] == "wall"]
    assert {cell.labels["protocol"] for cell in wall if cell.source is not None or cell.source_metrics} == {
        "ray"
    }
    said = {
        one.claim.key: one.said for one in judged(ASU, source_summaries(ASU.chosen("default")), "default")
    }
    times = [BASELINES[name] for name in ("mnist", "cifar10")]
    saved = [100 * (1 - one["async"][1] / one["sync"][1]) for one in times]
    assert said["ray-suffers-on-fashion"] is None
    assert said["async-faster"] == pytest.approx(sum(saved) / 2, abs=0.005)


def test_statistics_of_hand_made_rows() -> None:
    measured = rows({0: {"a": 10.0, "b": 30.0, "ab": 50.0}})
    assert statistics.mean(2, row="a*")(measured) == {0: 30.0}
    assert statistics.mean(2, row="*b")(measured) == {0: 40.0}
    assert statistics.mean(3, row="a*")(measured) == {}, "one of three cells is missing"
    assert statistics.nc_share(3)(measured)[0] == pytest.approx(100 / 3)
    a, b, ab = (statistics.at(row=row) for row in ("a", "b", "ab"))
    assert statistics.mean_of_converged(a, b, ab)(measured) == {0: 40.0}
    assert statistics.mean_of_converged(a)(measured) == statistics.mean_of_converged(b, a, b)(NOTHING) == {}
    assert statistics.ratio(statistics.at(row="ab"), statistics.at(row="a"))(measured) == {0: 5.0}
    contests = [
        (statistics.at(row="b"), [statistics.at(row="a")]),
        (statistics.at(row="a"), [statistics.at(row="b")]),
    ]
    assert statistics.shares_won(contests)(measured) == {0: 50.0}


def test_the_reports_own_numbers_give_its_own_conclusions() -> None:
    cells = EPFL.chosen("default")
    said = {one.claim.key: one.said for one in judged(EPFL, source_summaries(cells), "default")}
    assert said["labels-lose"] == pytest.approx(27.8, abs=0.2)
    assert said["momentum-99-diverges"] == 100
    assert said["splitting-saves-time"] == pytest.approx(78, abs=1)
    assert all(value is not None for key, value in said.items() if not key.startswith("landscape"))


LAYOUT = Layout("T", "50 % of it", ("p",), ("a", "b"), ("c",))


def table_of(values: dict[int, dict[str, float]]) -> str:
    return as_markdown(entries(rows(values, source=88.5), LAYOUT), LAYOUT)


def test_tables_show_mean_interval_nc_and_the_source() -> None:
    text = table_of({seed: {"a": 88.0 + seed, "b": 10.0} for seed in range(3)})
    assert "| a | p | 89.00 ± 2.48 |" in text
    assert "| a | source | 88.50 |" in text
    assert "| b | p | NC |" in text
    assert "88.00 (1 of 2 NC)" in table_of({0: {"a": 88.0}, 1: {"a": 10.0}})


def test_tables_as_csv_and_latex() -> None:
    found = entries(rows({0: {"a": 88.0}, 1: {"a": 90.0}, 2: {"a": 89.0}}, source=10.0), LAYOUT)
    assert as_csv(found, LAYOUT).splitlines()[1] == "T,p,a,c,89.0,86.5159,91.4841,3,0,10.0"
    latex = as_latex(found, LAYOUT)
    assert r"\caption{50 \% of it}" in latex and r"a & p & 89.00 $\pm$ 2.48 \\" in latex and "& NC" in latex
    bracket = latex_table("lists", ["a", "b"], [["1", "[]"], ["[2]", "3"]], names=1)
    assert "\n{}[2] & 3" in bracket, "or TeX reads it as a length after the row before"


def test_times_are_put_beside_the_sources() -> None:
    measured = rows({0: {"a": 88.0}}, seconds=10.0, source_seconds=340.0)
    again = measured.with_columns(protocol=pl.lit("q"))  # takes as long
    first = measured.with_columns(table=pl.lit("S"), seconds=20.0)
    lost = first.with_columns(seconds=1.0, seed=1, converged=False)  # it ended early
    assert time_rows(pl.concat([measured, again, first, lost.cast(first.schema)]), "seconds", ["S", "T"])[
        1
    ] == [
        ["S", "a", "c", "p", "340.0", "20.0", "17.00"],
        ["T", "a", "c", "p, q", "340.0", "10.0", "34.00"],
    ]


def test_of_the_machines_times_the_quickest_seed_counts() -> None:
    times = {"host_seconds": 40.0, "source_host_seconds": 400.0, "seconds": 1.0, "source_seconds": 30.0}
    quiet = rows({0: {"a": 88.0}}, **times)
    busy = rows({1: {"a": 88.0}}, **times | {"host_seconds": 800.0, "seconds": 2.0})
    both = pl.concat([quiet, busy])
    assert [row[4:] for row in time_rows(both, "host_seconds", ["T"])[1]] == [["400.0", "40.0", "10.00"]]
    assert [row[4:] for row in time_rows(both, "seconds", ["T"])[1]] == [["30.0", "1.5", "20.00"]]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_study_is_drawn_from_summaries_alone(name: str, tmp_path: Path) -> None:
    committed = Path(__file__).parents[2] / "results" / name / "summaries.parquet"
    (tmp_path / "summaries.parquet").write_bytes(committed.read_bytes())
    drawn = draw(STUDIES[name], tmp_path)
    page = (tmp_path / "README.md").read_text()
    assert len(drawn.verdicts) == len(STUDIES[name].claims("default"))
    assert all(one.claim.statement in page for one in drawn.verdicts)
    assert (tmp_path / "tables" / f"{drawn.tables[0][1].name}.tex").is_file()


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_rehearsal_says_so_and_judges_nothing(name: str, tmp_path: Path) -> None:
    """Even of summaries from which verdicts would follow."""
    committed = Path(__file__).parents[2] / "results" / name / "summaries.parquet"
    (tmp_path / "summaries.parquet").write_bytes(committed.read_bytes())
    drawn = draw(STUDIES[name], tmp_path, rehearsal=True)
    page = (tmp_path / "README.md").read_text()
    assert {one.verdict for one in drawn.verdicts} <= {"rehearsed", "not measured"}
    assert any(one.verdict == "rehearsed" for one in drawn.verdicts)
    assert "This is a rehearsal, not a result." in page and f"`straggler study {name} --quick`" in page
    assert "replicated" not in page and "inconclusive" not in page


def test_a_rehearsal_replaces_no_results(tmp_path: Path) -> None:
    committed = Path(__file__).parents[2] / "results" / "epfl" / "summaries.parquet"
    (tmp_path / "summaries.parquet").write_bytes(committed.read_bytes())
    draw(EPFL, tmp_path)
    with pytest.raises(InputError, match="would replace the results there; choose another"):
        study("epfl", quick=True, results=tmp_path, runs=tmp_path / "runs")
    with pytest.raises(InputError, match="a rehearsal judges no claims"):
        study("epfl", quick=True, into=tmp_path / "README.md")
    assert (
        read_summaries(tmp_path).height == pl.read_parquet(committed).height
        and not (tmp_path / "runs").exists()
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_what_is_rehearsed_can_be_drawn(name: str, tmp_path: Path) -> None:
    """Few cells leave tables and figures with next to nothing in them."""
    committed = pl.read_parquet(Path(__file__).parents[2] / "results" / name / "summaries.parquet")
    quick = STUDIES[name].chosen("default", quick=True)
    labels = pl.DataFrame([dict(cell.labels) for cell in quick])
    few = committed.join(labels, on=labels.columns, how="semi").filter(pl.col("seed") == 0)
    assert len(few) >= 4  # not all of them may have been run
    few.write_parquet(tmp_path / "summaries.parquet")
    for curves in (Path(__file__).parents[2] / "results" / name).glob("curves.parquet"):
        (tmp_path / "curves.parquet").write_bytes(curves.read_bytes())
    drawn = draw(STUDIES[name], tmp_path, rehearsal=True)
    assert drawn.tables and list(tmp_path.glob("*.png"))
    claims = json.loads((tmp_path / "claims.json").read_text())
    assert {claim["verdict"] for claim in claims} <= {"rehearsed", "not measured"}
    assert [claim["statement"] for claim in claims] == [one.claim.statement for one in drawn.verdicts]
    assert not (tmp_path / "training.png").exists()  # of 16 workers, of which there are none here


def test_nothing_to_draw_is_said(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="run straggler study epfl first"):
        draw(EPFL, tmp_path)


@pytest.mark.parametrize("chosen", STUDIES.values(), ids=STUDIES)
@pytest.mark.parametrize("scale", ["default", "paper"])
def test_where_every_cell_has_run_every_claim_is_judged(chosen: Study, scale: Scale) -> None:
    names = ("value", "test_accuracy", "test_loss", "train_loss", "mean_gap", "seconds", "gradients")
    facts = dict.fromkeys(names, 50.0)
    measured = pl.DataFrame(
        [
            {**cell.labels, "seed": seed, "converged": True, **facts, cell.metric: 50.0}
            for cell in chosen.chosen(scale)
            for seed in (0, 1)
        ]
    )
    found = judged(chosen, measured, scale)
    assert [one.claim.key for one in found if one.verdict == "not measured"] == []
    bare = [one.claim.key for one in found if len(one.causes) < len(one.claim.causes)]
    assert scale == "paper" or bare == [], "of CIFAR-10 at the default scale only"


def test_there_are_enough_claims_and_each_is_measurable() -> None:
    claims = [claim for study in STUDIES.values() for claim in study.claims("default")]
    assert len(claims) >= 25
    assert len({claim.key for claim in claims}) == len(claims)
    for one in claims:
        assert one.least <= one.most and (math.isfinite(one.least) or math.isfinite(one.most))
