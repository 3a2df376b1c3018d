"""Pooling has the bits of torch's, and of torch's after a ReLU where it comes before one."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from straggler.data.pooling import MaxPool

sizes = st.tuples(*(st.integers(1, 3) for _ in range(4)))


@settings(deadline=None)
@given(sizes, st.integers(0, 2**32), st.sampled_from([1, 4, 1000]))
def test_the_bits_of_torch_with_ties_and_without(size, seed, grades):
    """With one grade every window is a tie, with four many are, with a thousand few."""
    images, gradient = random_images(size, seed, grades)
    assert_same(MaxPool(), nn.MaxPool2d(2), images, gradient)


@settings(deadline=None)
@given(sizes, st.integers(0, 2**32), st.sampled_from([4, 1000]))
def test_before_a_relu_it_is_what_torch_has_after_it(size, seed, grades):
    images, gradient = random_images(size, seed, grades)
    ours = nn.Sequential(MaxPool(), nn.ReLU())
    assert_same(ours, nn.Sequential(nn.ReLU(), nn.MaxPool2d(2)), images, gradient)


@pytest.mark.parametrize("largest", [float("inf"), float("nan"), 1e-45])
def test_what_is_not_a_usual_number_is_seen(largest):
    images = torch.zeros(1, 1, 2, 2, requires_grad=True)
    images.data[0, 0, 1, 0] = largest
    pooled = MaxPool()(images)
    assert torch.equal(pooled.isnan(), torch.tensor([[[[largest != largest]]]]))
    assert largest != largest or pooled.item() == torch.tensor(largest).item()
    pooled.backward(torch.ones_like(pooled))
    assert largest != largest or torch.equal(images.grad[0, 0], torch.tensor([[0.0, 0.0], [1.0, 0.0]]))


def test_layouts_other_than_rows_are_read():
    images = torch.randn(2, 3, 4, 6).to(memory_format=torch.channels_last)
    assert_same(MaxPool(), nn.MaxPool2d(2), images, torch.randn(2, 3, 2, 3))


def test_its_gradient_can_be_differentiated():
    images = torch.randn(1, 2, 4, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(MaxPool(), images)


def random_images(size, seed, grades):
    """Images of twice this height and width, and a gradient for what they are pooled to."""
    generator = torch.Generator().manual_seed(seed)
    batch, channels, height, width = size
    shape = (batch, channels, 2 * height, 2 * width)
    images = torch.randint(-grades, grades, shape, generator=generator) / 10
    return images, torch.randn(size, generator=generator)


def assert_same(ours, theirs, images, gradient):
    """Both the values and the gradients."""
    results = []
    for pool in (ours, theirs):
        leaf = images.clone().requires_grad_()
        pooled = pool(leaf)
        pooled.backward(gradient)
        results.append((pooled.detach(), leaf.grad))
    assert torch.equal(results[0][0], results[1][0])
    assert torch.equal(results[0][1], results[1][1])
