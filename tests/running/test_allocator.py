"""With the tuned allocator a process requests memory from the system once, not at every step."""

import subprocess
import sys

import pytest

FAULTS = """
import resource
import torch
from straggler.config.registry import parse_entry
from straggler.running.allocator import tune_allocator
from straggler.problems.models import MODELS

torch.set_num_threads(1)
tune_allocator()
network = parse_entry("lenet5", MODELS).build((1, 28, 28), 10)
images, labels = torch.randn(32, 1, 28, 28), torch.zeros(32, dtype=torch.long)


def faults(steps):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(steps):
        network.zero_grad()
        torch.nn.functional.cross_entropy(network(images), labels).backward()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


faults(20)
print(faults(100) / 100)
"""


@pytest.mark.slow
def test_a_gradient_reuses_the_memory_of_the_previous_one():
    """Count page faults of LeNet-5's gradient; its tensors have about 600 pages."""
    done = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 30
