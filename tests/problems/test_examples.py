"""Examples: normalisation, augmentation and the random transforms of Datasets."""

import numpy as np
import torch
from torch.utils.data import TensorDataset

from straggler.core.randomness import addressed_rng
from straggler.problems.examples import ArrayExamples, DatasetExamples, crop_and_flip


def test_random_transforms_of_a_dataset_are_seeded_per_batch() -> None:
    class Noisy(TensorDataset):
        def __getitem__(self, index: int) -> tuple[torch.Tensor, ...]:
            inputs, label = super().__getitem__(index)
            return inputs + torch.randn(4) + float(np.random.rand()), label  # noqa: NPY002

    data = Noisy(torch.zeros(20, 4), torch.arange(20) % 2)
    examples = DatasetExamples(data)
    chosen = np.array([3, 4])
    first, _ = examples.fetch(chosen, lambda: addressed_rng(0, "augment", 1, 2))
    again, _ = examples.fetch(chosen, lambda: addressed_rng(0, "augment", 1, 2))
    other, _ = examples.fetch(chosen, lambda: addressed_rng(0, "augment", 1, 3))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_images_are_normalised_and_augmented_only_in_training() -> None:
    images = np.arange(2 * 3 * 8 * 8, dtype=np.uint8).reshape(2, 3, 8, 8)
    examples = ArrayExamples(images, np.array([0, 1]), (0.5, 0.4, 0.3), (0.2, 0.2, 0.1), augment=True)
    plain, _ = examples.fetch(np.array([0, 1]))
    expected = (images / 255 - np.reshape((0.5, 0.4, 0.3), (1, 3, 1, 1))) / np.reshape(
        (0.2, 0.2, 0.1), (1, 3, 1, 1)
    )
    assert np.allclose(plain, expected, atol=1e-5)
    moved, _ = examples.fetch(np.array([0, 1]), lambda: addressed_rng(0, "augment"))
    assert moved.shape == plain.shape
    assert not torch.equal(moved, plain)


def test_crops_are_windows_of_the_padded_image() -> None:
    image = np.arange(1, 65, dtype=np.uint8).reshape(1, 1, 8, 8)
    padded = np.pad(image, ((0, 0), (0, 0), (4, 4), (4, 4)))
    windows = [padded[0, 0, r : r + 8, c : c + 8] for r in range(9) for c in range(9)]
    allowed = {w.tobytes() for w in windows} | {w[:, ::-1].tobytes() for w in windows}
    seen = {crop_and_flip(image, addressed_rng(0, "crop", 0, i))[0, 0].tobytes() for i in range(300)}
    assert seen <= allowed
    assert len(seen) > 100
