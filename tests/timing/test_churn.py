"""Churn: workers leave and join at the times of the laws, and a run can be interrupted anywhere."""

import functools
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from small_clusters import Cluster

from straggler.config.registry import parse_entry
from straggler.core.randomness import addressed_rng
from straggler.engines import simulator
from straggler.timing import CHURN, Churn

LAWS = [
    "exponential-churn(up=3.0, down=1.0)",
    "preemption(every=5.0, down=2.0, warning=0.5)",
    "diurnal(period=10.0, share=0.6)",
    "late(seconds=2.0, workers=[1])",
    "leave(seconds=4.0, workers=[0])",
]


def churn(*laws: str, workers: int = 3, seed: int = 0) -> Churn:
    return Churn([parse_entry(text, CHURN) for text in laws], workers, seed)


def switches(made: Churn, until: float) -> Iterator[tuple[float, int, bool]]:
    """Yield (time, worker, present) of every switch of a single law until a time."""
    while made.next_time < until:
        time, worker, grace = made.switch()
        yield time, worker, grace is None


def present_share(made: Churn, worker: int, until: float) -> float:
    """Return the share of the time in which a worker is present."""
    total, since, was = 0.0, 0.0, made.is_present(worker)
    while made.next_time < until:
        time, who, _ = made.switch()
        if who == worker:
            total, since, was = total + (time - since) * was, time, made.is_present(worker)
    return (total + (until - since) * was) / until


def write_trace(path: Path, events: list[tuple[int, float, str]]) -> str:
    table = pl.DataFrame(events, schema=["worker", "time", "event"], orient="row")
    table.write_csv(path) if path.suffix == ".csv" else table.write_parquet(path)
    return f"churn-trace(file='{path}')"


# The laws


def test_every_law_is_tested_here() -> None:
    assert {parse_entry(text, CHURN).name for text in LAWS} | {"churn-trace"} == set(CHURN)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("law", "share"),
    [
        ("exponential-churn(3, 1)", 3 / 4),
        ("exponential-churn(1, 4)", 1 / 5),
        ("preemption(6, 2)", 3 / 4),
        ("diurnal(10, 0.35)", 0.35),
        ("diurnal(10, 1)", 1.0),
    ],
)
def test_workers_are_present_for_their_share_of_the_time(law: str, share: float) -> None:
    shares = [present_share(churn(law), worker, 20_000) for worker in range(3)]
    assert np.mean(shares) == pytest.approx(share, rel=0.03)


def test_exponential_times_have_their_means() -> None:
    events = list(switches(churn("exponential-churn(3, 1)", workers=1), 20_000))
    gaps = np.diff([0.0, *(time for time, _, _ in events)])
    for number, mean in ((0, 3.0), (1, 1.0)):
        drawn = gaps[number::2]
        assert drawn.mean() == pytest.approx(mean, rel=0.04) and drawn.std() == pytest.approx(mean, rel=0.06)


def test_preempted_workers_are_back_after_a_fixed_time() -> None:
    events = list(switches(churn("preemption(6, 2)", workers=1), 5000))
    gaps = np.diff([time for time, _, _ in events])
    assert np.allclose(gaps[::2], 2) and gaps[1::2].std() == pytest.approx(6, rel=0.12)


def test_diurnal_windows_have_a_phase_per_worker() -> None:
    made, law = churn("diurnal(10, 0.6)", workers=6), parse_entry("diurnal(10, 0.6)", CHURN)
    phases = [addressed_rng(0, "churn-0", worker, 0).random() for worker in range(6)]
    first = [made.is_present(worker) for worker in range(6)]
    assert first == [phase < 0.6 for phase in phases] and len(set(first)) == 2
    seen = dict[int, list[tuple[float, bool]]]()
    for time, worker, present in switches(made, 100):
        seen.setdefault(worker, []).append((time, present))
    for worker, events in seen.items():
        for time, present in events:
            passed = (time / law.period + phases[worker]) % 1
            assert min(abs(passed - edge) for edge in ([0, 1] if present else [0.6])) < 1e-9
        assert len(events) in (19, 20, 21)


def test_each_switch_is_a_function_of_its_address() -> None:
    made = churn("late(1, workers=[0])", "exponential-churn(3, 1)", seed=9)
    gaps = [3 * addressed_rng(9, "churn-1", 2, 0).standard_exponential()]
    gaps.append(1 * addressed_rng(9, "churn-1", 2, 1).standard_exponential())
    times = [time for time, worker, _ in switches(made, 50) if worker == 2]
    assert times[:2] == [gaps[0], gaps[0] + gaps[1]]


def test_other_workers_do_not_change_a_workers_times() -> None:
    few, many = (list(switches(churn("exponential-churn(3, 1)", workers=n), 30)) for n in (2, 20))
    assert [each for each in many if each[1] < 2] == few and [each[0] for each in many] == sorted(
        each[0] for each in many
    )


def test_a_worker_is_present_when_all_laws_say_so() -> None:
    made = churn("late(2, workers=[0])", "leave(5, workers=[0])", "diurnal(10, 1)", workers=2)
    seen = [(0.0, made.is_present(0))]
    while made.next_time < 100:
        time, _, _ = made.switch()
        seen.append((time, made.is_present(0)))
    assert seen == [(0, False), (2, True), (5, False)]
    both = churn("exponential-churn(1, 1)", "exponential-churn(1, 1)", workers=1)
    assert present_share(both, 0, 20_000) == pytest.approx(1 / 4, rel=0.05)


# What happens to jobs


def test_a_worker_that_leaves_loses_its_job_and_starts_again_when_it_is_back(tmp_path: Path) -> None:
    law = write_trace(tmp_path / "trace.csv", [(1, 1.5, "leave"), (1, 3.25, "join")])
    run = Cluster(churn=[law]).run(seconds=5)
    own = [(time, what) for time, worker, what in run.rows if worker == 1]
    assert own == [(1, "applied"), (1.5, "leave"), (3.25, "join"), (4.25, "applied")]
    assert [time for time, worker, _ in run.rows if worker == 0] == [1, 2, 3, 4, 5]
    assert run.server.ledger.cancelled == 1
    assert [each.job.index for each in run.arrivals if each.worker == 1] == [0, 1], "the same batch again"
    assert [each.job.launch for each in run.arrivals if each.worker == 1] == [0, 2]


def test_with_finish_the_job_arrives_first_and_then_the_worker_leaves(tmp_path: Path) -> None:
    write_trace(tmp_path / "trace.csv", [(1, 1.5, "leave"), (1, 3.25, "join")])
    run = Cluster(churn=[f"churn-trace(file='{tmp_path / 'trace.csv'}', finish=true)"]).run(seconds=4.5)
    own = [(time, what) for time, worker, what in run.rows if worker == 1]
    assert own == [(1, "applied"), (2, "applied"), (2, "leave"), (3.25, "join"), (4.25, "applied")]


def test_a_worker_that_should_leave_but_is_back_before_its_job_ends_stays(tmp_path: Path) -> None:
    write_trace(tmp_path / "trace.csv", [(1, 1.25, "leave"), (1, 1.75, "join")])
    run = Cluster(churn=[f"churn-trace(file='{tmp_path / 'trace.csv'}', finish=true)"]).run(seconds=4)
    assert {what for _, _, what in run.rows} == {"applied"} and len(run.rows) == 8


def test_a_job_that_is_abandoned_while_its_worker_finishes_it_lets_the_worker_leave() -> None:
    """Worker 1 needs 10 s. It should finish at 1.5 s, but the round ends at 2 s and cancels its job."""
    run = Cluster(
        policy="k-sync(k=1)", delays=["constant(9, workers=[1])"], churn=["leave(1.5, [1], finish=true)"]
    ).run(gradients=4)
    assert run.rows == [
        (1, 0, "applied"),
        (2, 0, "applied"),
        (2, 1, "leave"),
        (3, 0, "applied"),
        (4, 0, "applied"),
    ]


@pytest.mark.parametrize(("warning", "delivered"), [(0.0, False), (0.25, False), (0.5, True), (2.0, True)])
def test_a_preempted_worker_delivers_what_it_finishes_within_the_warning(
    monkeypatch: pytest.MonkeyPatch, warning: float, delivered: bool
) -> None:
    law = parse_entry(f"preemption(every=5, down=2, warning={warning}, workers=[1])", CHURN)
    monkeypatch.setattr(type(law), "switch_time", lambda self, term, worker, number, last: 1.5 + 2 * number)
    run = Cluster(churn=[str(law)]).run(seconds=4.5)
    own = [(time, what) for time, worker, what in run.rows if worker == 1]
    leaving = [(2, "applied"), (2, "leave")] if delivered else [(1.5, "leave")]
    assert own == [(1, "applied"), *leaving, (3.5, "join"), (4.5, "applied")]


def test_a_message_in_the_servers_queue_counts_as_finished(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both messages reach the server's link at 1 s, which takes 2 s for each; at 1.5 s worker 1 must go."""
    law = parse_entry("preemption(every=5, down=50, warning=0.25, workers=[1])", CHURN)
    monkeypatch.setattr(type(law), "switch_time", lambda self, term, worker, number, last: 1.5 + 50 * number)
    run = Cluster(churn=[str(law)], server_link="link(up=50)").run(events=3)
    assert run.rows == [(3, 0, "applied"), (5, 1, "applied"), (5, 1, "leave")]


def test_a_late_worker_joins_at_its_time_and_gets_a_job() -> None:
    run = Cluster(churn=["late(2.5, workers=[1])"]).run(seconds=4)
    assert run.rows[0] == (0, 1, "leave"), "the server is told before anything else"
    assert [row for row in run.rows if row[1] == 1] == [
        (0, 1, "leave"),
        (2.5, 1, "join"),
        (3.5, 1, "applied"),
    ]
    assert run.server.ledger.cancelled == 1 and run.arrivals[-1].time == 4


def test_a_worker_leaves_for_good() -> None:
    run = Cluster(churn=["leave(2.5, workers=[0])"]).run(seconds=6)
    assert [row for row in run.rows if row[1] == 0] == [
        (1, 0, "applied"),
        (2, 0, "applied"),
        (2.5, 0, "leave"),
    ]


def test_changes_come_before_arrivals_at_the_same_time_and_by_worker() -> None:
    run = Cluster(churn=["leave(2, workers=[2, 1])"], workers=4).run(events=9)
    assert run.rows[4:] == [
        (2, 1, "leave"),
        (2, 2, "leave"),
        (2, 0, "applied"),
        (2, 3, "applied"),
        (3, 0, "applied"),
    ]


@pytest.mark.parametrize("policy", ["asynchronous", "synchronous", "ssp(bound=1)", "k-sync(k=1)"])
def test_if_everybody_is_away_time_jumps_to_the_next_join(tmp_path: Path, policy: str) -> None:
    away = [(worker, 1.5, "leave") for worker in (0, 1)] + [(1, 100.0, "join"), (0, 200.0, "join")]
    run = Cluster(churn=[write_trace(tmp_path / "trace.parquet", away)], policy=policy).run(updates=110)
    assert [row[0] for row in run.rows if row[2] == "join"] == [100, 200]
    first = next(row for row in run.rows if row[0] > 100 and row[2] == "applied")
    assert first[:2] == (101, 1)


def test_everybody_may_be_late() -> None:
    run = Cluster(churn=["late(3, workers=[0])", "late(7, workers=[1])"]).run(seconds=8)
    assert run.rows[:4] == [(0, 0, "leave"), (0, 1, "leave"), (3, 0, "join"), (4, 0, "applied")]
    assert (8, 1, "applied") in run.rows


def test_jobs_longer_than_any_presence_end_in_a_plain_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulator, "MAX_SWITCHES", 500)
    with pytest.raises(RuntimeError, match="left and joined 501 times without finishing a job"):
        Cluster(churn=["preemption(1, 1)"], compute="constant(1e6)").run(updates=1)
    with pytest.raises(RuntimeError, match="left and joined 501 times"):
        Cluster(churn=["preemption(1e-3, 1)"], compute="constant(1)").run(updates=1)


@pytest.mark.slow
def test_ten_thousand_workers_with_links_and_churn() -> None:
    run = Cluster(
        workers=10_000,
        compute="gamma(1, 0.2)",
        links=["link(latency=0.01, up=1e6)"],
        server_link="link(up=1e7, down=1e7)",
        churn=["exponential-churn(30, 10)", "diurnal(100, 0.8)"],
    ).run(gradients=12_000)
    assert run.server.gradients == 12_000 and 7000 < len(run.server.active) < 9000
    assert len(run.engine._queue) < 31_000


# Interrupted runs

EVERYTHING: dict[str, Any] = {
    "compute": "gamma(1, 0.5)",
    "delays": ["exponential(0.2)", "on-off(0.1, 0.2, 3)"],
    "links": ["link(latency=0.05, up=2000, down=1000)"],
    "server_link": "link(latency=0.01, up=700, down=500)",
    "churn": [
        "exponential-churn(4, 1)",
        "preemption(6, 1, warning=0.7, workers=[1, 2])",
        "exponential-churn(5, 1, workers=[3], finish=true)",
        "late(3, workers=[0])",
    ],
    "workers": 4,
    "work": "local(steps=2, lr=0.01)",
    "batches": [2, 1, 2, 3],
    "scales": [1.0, 0.5, 2.0, 1.0],
}
POLICY_TEXTS = [
    "asynchronous",
    "ssp(bound=2)",
    "k-sync(k=2)",
    "k-batch-sync(k=2)",
    "k-async(k=2)",
    "synchronous",
]
EVENTS = 150


@functools.cache
def uninterrupted(policy: str) -> Cluster:
    return Cluster(policy=policy, **EVERYTHING).run(events=EVENTS)


@pytest.mark.slow
@pytest.mark.parametrize("policy", POLICY_TEXTS)
def test_a_run_that_is_interrupted_anywhere_continues_exactly(policy: str) -> None:
    whole = uninterrupted(policy)
    kinds = {what for _, _, what in whole.rows}
    assert {"leave", "join", "applied"} <= kinds
    cluster = Cluster(policy=policy, **EVERYTHING)
    for event in range(1, EVENTS):
        cluster.run(events=event)
        stored = cluster.checkpoint()
        assert len(cluster.rows) == event and cluster.rows == whole.rows[:event], f"after {event} events"
        rows, arrivals = cluster.rows, cluster.arrivals
        cluster = Cluster(policy=policy, **EVERYTHING, rows=rows, arrivals=arrivals).restore(stored)
    cluster.run(events=EVENTS)
    assert cluster.rows == whole.rows
    parts = [[(each.started, each.compute, each.delay) for each in run.arrivals] for run in (cluster, whole)]
    assert parts[0] == parts[1]
    assert cluster.server.x.equal(whole.server.x) and cluster.server.ledger == whole.server.ledger


def test_a_plain_run_has_no_state_to_store() -> None:
    plain = Cluster(is_plain=True, compute="gamma(1, 0.5)").run(events=7)
    assert plain.engine.state() == {}
    again = Cluster(is_plain=True, compute="gamma(1, 0.5)", rows=list(plain.rows)).restore(plain.checkpoint())
    whole = Cluster(is_plain=True, compute="gamma(1, 0.5)").run(events=30)
    assert again.run(events=30).rows == whole.rows


# Text and refusals


@pytest.mark.parametrize("text", LAWS)
def test_text_round_trip(text: str) -> None:
    assert str(parse_entry(text, CHURN)) == text
    if "finish" in type(parse_entry(text, CHURN)).model_fields:
        some = f"{text[:-1]}, finish=True)"
        assert str(parse_entry(some, CHURN)) == some


def test_the_id_of_a_trace_has_the_hash_of_its_file(tmp_path: Path) -> None:
    ids = set()
    for time in (1.0, 2.0):
        law = parse_entry(write_trace(tmp_path / "trace.csv", [(0, time, "leave"), (0, 3.0, "join")]), CHURN)
        ids.add(law.identity())
    assert len(ids) == 2 and all("#" in each for each in ids)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("exponential-churn(0, 1)", "up must be greater than 0, got 0"),
        ("exponential-churn(inf, 1)", "up must be a finite number"),
        ("exponential-churn(1, -1)", "down must be greater than 0, got -1"),
        ("exponential-churn(1)", "down is missing"),
        ("preemption(5, 1, warning=-1)", "warning must be greater than or equal to 0, got -1"),
        ("diurnal(10, 1.5)", "share must be less than or equal to 1, got 1.5"),
        ("diurnal(0, 0.5)", "period must be greater than 0"),
        ("late(2)", "workers is missing"),
        ("late(0, [1])", "seconds must be greater than 0"),
        ("leave(2)", "workers is missing"),
        ("leave(-2, [1])", "seconds must be greater than or equal to 0"),
        ("leave(2, [])", r"\[\] affects no worker"),
        ("churn-trace", "file is missing"),
        ("chrun-trace('a.csv')", "Did you mean 'churn-trace'"),
    ],
)
def test_wrong_settings_are_refused_in_one_line(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        parse_entry(text, CHURN)
    assert "\n" not in str(caught.value)


NOBODY = [
    ("leave(2, [0, 1, 2])",),
    ("leave(2, [0, 1])", "leave(3, [2])"),
    ("diurnal(10, 0)",),
    ("exponential-churn(1, inf)",),
    ("preemption(1, inf)",),
    ("exponential-churn(1, inf, workers=[0, 1])", "leave(1, [2], finish=true)"),
]


@pytest.mark.parametrize("laws", NOBODY)
def test_a_churn_that_leaves_nobody_is_refused(laws: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match=r"churn=.*: all workers leave for good. Name the workers"):
        churn(*laws)
    churn(*laws, workers=4) if "workers=[" in laws[0] or "leave" in laws[0] else None


@pytest.mark.parametrize("last", ["leave", "join"])
def test_a_trace_in_which_everybody_leaves_for_good_is_refused(tmp_path: Path, last: str) -> None:
    events = [(0, 1.0, "leave"), (1, 2.0, "leave"), (0, 3.0, "join"), (2, 4.0, "leave"), (0, 5.0, "leave")]
    law = write_trace(
        tmp_path / "trace.csv", [*events, (1, 6.0, "join"), (1, 7.0, "leave"), (1, 8.0, "join")]
    )
    churn(law)
    law = write_trace(tmp_path / "trace.csv", events)
    with pytest.raises(ValueError, match="all workers leave for good"):
        churn(law)
    churn(law, workers=4)


def test_a_worker_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match=r"late\(.*\): worker 7 does not exist. The workers are 0 to 2"):
        churn("late(1, workers=[7])")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("trace.txt", "", "neither .csv nor .parquet"),
        ("trace.csv", "worker,time\n0,1\n", "needs the columns worker, time and event"),
        ("trace.csv", "worker,time,event\n0,soon,leave\n", "needs the columns worker, time and event"),
        ("trace.csv", "worker,time,event\n0.5,1,leave\n", "whole numbers"),
        (
            "trace.csv",
            "worker,time,event\n9,1,leave\n",
            "row 1 has worker=9, which must be a worker from 0 to 2",
        ),
        ("trace.csv", "worker,time,event\n-1,1,leave\n", "row 1 has worker=-1"),
        ("trace.csv", "worker,time,event\n0,-1,leave\n", "row 1 has time=-1.0, which must be finite"),
        ("trace.csv", "worker,time,event\n0,1,leave\n0,,join\n", "row 2 has time=None"),
        ("trace.csv", "worker,time,event\n0,1,died\n", "row 1 has event=died, which must be join or leave"),
        (
            "trace.csv",
            "worker,time,event\n0,1,leave\n0,2,leave\n",
            "the event leave twice in a row, at 1.0 and",
        ),
        ("trace.parquet", "not parquet", "needs the columns"),
        ("gone/trace.csv", None, "No such file"),
    ],
)
def test_a_trace_with_a_bad_file_is_refused(
    tmp_path: Path, name: str, content: str | None, message: str
) -> None:
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=message) as caught:
        churn(f"churn-trace(file='{tmp_path / name}')")
    assert "\n" not in str(caught.value) and "churn-trace" in str(caught.value)


@pytest.mark.parametrize("address", ["https://example.com/trace.csv", "s3://bucket/trace.parquet"])
def test_a_trace_on_another_machine_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match=r"must be on this machine, not at an address\. Download it first"):
        churn(f"churn-trace(file='{address}')")


def test_rows_of_a_trace_may_be_in_any_order(tmp_path: Path) -> None:
    events = [(0, 5.0, "join"), (1, 2.0, "leave"), (0, 1.0, "leave"), (1, 3.0, "join")]
    for order in itertools.permutations(events):
        made = churn(write_trace(tmp_path / "trace.csv", list(order)))
        assert [event[:2] for event in switches(made, 100)] == [(1, 0), (2, 1), (3, 1), (5, 0)]


def test_no_model_is_counted_for_a_worker_that_is_away() -> None:
    """Two workers work from the start; the other two join after the end."""
    run = Cluster(churn=["late(100, workers=[2, 3])"], workers=4).run(updates=5)
    sent = run.server.ledger.dispatched - run.server.ledger.cancelled - 1  # the last one did not start yet
    assert run.server.bytes_down == sent * run.program.bytes_down == 6 * run.program.bytes_down
