"""Random faults of all processes of a run: it ends, no gradient is lost, and it replays to the same bits."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from fault_testing import SLOW_MODEL, VICTIMS, attacked_run, draw_faults

from straggler.record import Record
from straggler.running.replay import replay

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
CHAOS_FAULTS = 200  # per engine
FAULTS_PER_RUN = 20
DELAYS = {"simulator": "", "processes": "constant(seconds=0.02)", "ray": "constant(seconds=0.03)"}
# Seed, faults and gradients. These seeds kill a worker or a process of the pool, and the driver.
FEW = {"simulator": (0, 3, 200), "processes": (10, 3, 200), "ray": (10, 3, 150)}
MANY = FAULTS_PER_RUN, 2000
CASES = [
    *((engine, *FEW[engine]) for engine in VICTIMS),
    *(
        pytest.param(engine, seed, *MANY, marks=pytest.mark.chaos)
        for engine in VICTIMS
        for seed in range(100, 100 + CHAOS_FAULTS // FAULTS_PER_RUN)
    ),
]


@pytest.fixture
def ray_address() -> Iterator[tuple[str, int]]:
    """The address of a Ray that outlives drivers, and its process that starts workers."""
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    ray.shutdown()
    head = {"num_cpus": 4, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head, shutdown_at_exit=False)
    (raylet,) = cluster.head_node.all_processes["raylet"]
    yield cluster.address, raylet.process.pid
    cluster.shutdown()


@pytest.mark.parametrize(("engine", "seed", "count", "gradients"), CASES)
def test_random_faults(
    engine: str, seed: int, count: int, gradients: int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Killed, stopped and terminated processes are replaced; a driver that ended is resumed."""
    (tmp_path / "slow.py").write_text(SLOW_MODEL)
    settings = f"--workers 3 --gradients {gradients} --eval-every 0.5 --dataset digits"
    settings += f" --model {tmp_path}/slow.py:Slow"
    options, raylet = {"simulator": "--jobs 2"}.get(engine, ""), None
    if DELAYS[engine]:
        settings += f" --delay {DELAYS[engine]}"
    if engine == "ray":
        address, raylet = request.getfixturevalue("ray_address")
        options = f"--address {address}"
    draw = random.Random(seed)
    with attacked_run(tmp_path, engine, settings, options, raylet) as run:
        for fault in draw_faults(engine, seed, count, gradients):
            run.attack(fault, draw)
        record = run.check_end()
        print(f"{engine} {seed}: {len(run.done)} faults, {run.resumed} resumed, {run.longest:.1f} s silent")
        assert run.done
    assert replay(record, trust=True).matches
    if engine == "simulator":
        assert_equal_to_undisturbed_run(record, tmp_path / "undisturbed")


def assert_equal_to_undisturbed_run(record: Record, folder: Path) -> None:
    """Run the experiment of a record again in one process, and compare the weights and the arrivals."""
    from straggler.experiment import Experiment

    again = Experiment.from_record(record, trust=True).run(folder, jobs=1)
    assert again.summary["weights_sha256"] == record.summary["weights_sha256"]
    assert again.history.equals(record.history)
