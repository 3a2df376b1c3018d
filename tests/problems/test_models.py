"""Models: numbers of parameters, shapes, exact bits, and refused inputs."""

import copy
import math

import pytest
import torch
from torch import nn

from straggler.config.registry import parse_entry
from straggler.problems.models import MODELS

GREY, COLOUR = (1, 28, 28), (3, 32, 32)
SIZES = [
    ("lenet5", GREY, 61_706),
    ("cnn", GREY, 1_199_882),
    ("asu-mnist", GREY, 101_770),
    ("asu-mnist-conv", GREY, 1_960),
    ("asu-cifar", COLOUR, 62_006),
    ("asu-fashion", GREY, 29_034),
    ("resnet20", COLOUR, 269_722),
    ("wrn-16-4", COLOUR, 2_748_890),
    ("mlp(hidden=[64])", (20,), 20 * 64 + 64 + 640 + 10),
    ("mlp(hidden=[])", (20,), 210),
    ("linear", GREY, 7_850),
    ("gpt", (16,), 10 * 64 + 16 * 64 + 2 * (12 * 64 * 64 + 13 * 64) + 2 * 64),
]


def build(text, shape, classes=10):
    model = parse_entry(text, MODELS)
    return model.build(shape, classes, tokens=model.takes_tokens)


def make_inputs(text, shape, batch, classes=10):
    if parse_entry(text, MODELS).takes_tokens:
        return torch.randint(classes, (batch, *shape))
    return torch.randn(batch, *shape)


def test_every_model_has_a_row():
    assert {text.split("(")[0] for text, _, _ in SIZES} == set(MODELS)


@pytest.mark.parametrize(("text", "shape", "size"), SIZES)
def test_parameters(text, shape, size):
    assert sum(weights.numel() for weights in build(text, shape).parameters()) == size


@pytest.mark.parametrize(("text", "shape", "size"), SIZES)
def test_logits_for_each_class_and_a_gradient_for_each_parameter(text, shape, size):
    network = build(text, shape, classes=7)
    logits = network(make_inputs(text, shape, 4, classes=7))
    assert logits.shape == ((4, *shape, 7) if text == "gpt" else (4, 7))
    logits = logits.reshape(4, -1, 7)[:, -1]
    nn.functional.cross_entropy(logits, torch.tensor([0, 1, 2, 6])).backward()
    assert all(weights.grad is not None for weights in network.parameters())
    assert not torch.allclose(logits.logsumexp(1), torch.zeros(4)), "these are log-probabilities, not logits"


@pytest.mark.parametrize(("text", "shape", "size"), SIZES)
def test_the_same_generator_gives_the_same_weights(text, shape, size):
    torch.manual_seed(3)
    first = nn.utils.parameters_to_vector(build(text, shape).parameters())
    torch.manual_seed(3)
    second = nn.utils.parameters_to_vector(build(text, shape).parameters())
    assert torch.equal(first, second)


def learnt(layers, pixels):
    """Return the weights after three steps."""
    labels = torch.arange(len(pixels)) % 10
    for _ in range(3):
        torch.manual_seed(2)  # for dropout
        layers.zero_grad()
        nn.functional.cross_entropy(layers(pixels), labels).backward()
        with torch.no_grad():
            for weights in layers.parameters():
                weights -= 0.05 * weights.grad
    return nn.utils.parameters_to_vector(layers.parameters())


def with_plain_layers(text, shape):
    torch.manual_seed(1)
    network = build(text, shape)
    return network, nn.Sequential(*copy.deepcopy(network).children())


@pytest.mark.slow
@pytest.mark.parametrize("batch", [32, 1])
@pytest.mark.parametrize(("text", "shape", "size"), [row for row in SIZES if row[1] in (GREY, COLOUR)])
def test_onednn_layers_give_the_same_bits(text, shape, size, batch):
    network, plain = with_plain_layers(text, shape)
    pixels = torch.rand(batch, *shape)
    pixels[:, :, :8] = 0  # as in real images: windows in which every pixel is the largest
    assert torch.equal(learnt(network, pixels), learnt(plain, pixels))


@pytest.mark.parametrize("value", [math.nan, math.inf, 1e38])
@pytest.mark.parametrize("place", ["pixel", "weight", "bias"])
@pytest.mark.parametrize(("text", "shape"), [("lenet5", GREY), ("cnn", GREY), ("asu-cifar", COLOUR)])
def test_onednn_layers_keep_nan_and_infinity(text, shape, place, value):
    network, plain = with_plain_layers(text, shape)
    pixels = torch.rand(4, *shape)
    for layers in (network.eval(), plain.eval()):
        convolutions = [layer for layer in layers if isinstance(layer, nn.Conv2d)]
        with torch.no_grad():
            if place == "pixel":
                pixels[1, 0, 9, 9] = value
            elif place == "weight":
                convolutions[1].weight[:] = value
            else:
                convolutions[1].bias[3] = value
    assert torch.equal(network(pixels).isfinite(), plain(pixels).isfinite())
    assert torch.allclose(network(pixels), plain(pixels), rtol=0, atol=0, equal_nan=True)


def test_double_precision_does_not_use_onednn_layers():
    network = build("lenet5", GREY).double()
    assert network(torch.rand(2, *GREY, dtype=torch.float64)).dtype == torch.float64


@pytest.mark.slow
@pytest.mark.parametrize(("text", "shape", "size"), SIZES)
def test_parameters_may_be_views_of_one_flat_vector(text, shape, size):
    network = build(text, shape).eval()
    inputs = make_inputs(text, shape, 2)
    expected = network(inputs)
    flat = nn.utils.parameters_to_vector(network.parameters()).detach()
    nn.utils.vector_to_parameters(flat, network.parameters())
    assert torch.equal(network(inputs), expected)
    flat.zero_()
    assert not network(inputs).any()


def test_lenet_has_the_intermediate_shapes_of_the_paper():
    features = nn.Sequential(*list(build("lenet5", GREY))[:6])
    assert features(torch.randn(1, *GREY)).shape == (1, 16, 5, 5)


@pytest.mark.parametrize(("text", "shape"), [("lenet5", GREY), ("asu-cifar", COLOUR), ("asu-fashion", GREY)])
def test_pooling_before_the_relu_has_the_bits_of_pooling_after_it(text, shape):
    """Pixels are rounded to tenths, so that windows have several largest pixels."""
    ours = build(text, shape)
    layers = list(ours)
    for place, layer in enumerate(layers[:-1]):
        if isinstance(layer, nn.MaxPool2d):
            assert isinstance(layers[place + 1], nn.ReLU)
            layers[place : place + 2] = layers[place + 1], layer
    images = torch.randint(-3, 3, (8, *shape)) / 10
    gradients = []
    for network in (ours, nn.Sequential(*layers)):
        network.zero_grad()
        network(images).square().sum().backward()
        gradients.append([weights.grad.clone() for weights in ours.parameters()])
    assert all(map(torch.equal, *gradients))


def test_the_large_network_has_no_relu_between_second_convolution_and_pooling():
    kinds = [type(layer) for layer in build("cnn", GREY)]
    assert kinds[:5] == [nn.Conv2d, nn.ReLU, nn.Conv2d, nn.MaxPool2d, nn.Dropout]
    assert [layer.p for layer in build("cnn", GREY) if isinstance(layer, nn.Dropout)] == [0.25, 0.5]


@pytest.mark.slow
@pytest.mark.parametrize("text", ["resnet20", "wrn-16-4"])
def test_residual_networks_take_grey_images(text):
    assert build(text, GREY)(torch.randn(2, *GREY)).shape == (2, 10)


def test_residual_convolutions_have_the_variance_of_he():
    torch.manual_seed(0)
    convolutions = [m for m in build("resnet20", COLOUR).modules() if isinstance(m, nn.Conv2d)]
    assert len(convolutions) == 19
    widening = next(m for m in convolutions if (m.in_channels, m.out_channels) == (16, 32))
    assert widening.weight.std().item() == pytest.approx((2 / (9 * 32)) ** 0.5, rel=0.05)


def test_the_shortcut_has_no_parameters_and_copies_the_image():
    block = build("resnet20", COLOUR)[6]
    for weights in block.parameters():
        nn.init.zeros_(weights)
    images = torch.rand(1, 16, 8, 8)
    passed = block(images)
    assert passed.shape[1:] == (32, 4, 4)
    assert torch.equal(passed[:, :16], images[:, :, ::2, ::2])
    assert not passed[:, 16:].any()


@pytest.mark.parametrize(
    ("text", "shape", "message"),
    [
        ("lenet5", COLOUR, r"lenet5 requires 1×28×28 images, .* 3×32×32. Use one of asu-cifar, resnet20"),
        ("asu-cifar", GREY, r"asu-cifar requires 3×32×32 images, .* 1×28×28. Use one of lenet5"),
        ("resnet20", (20,), r"resnet20 requires images .* 20. Use one of mlp, linear"),
        ("wrn-16-4", (1, 4, 4), r"at least 8×8 pixels, .* 1×4×4. Use one of mlp, linear"),
    ],
)
def test_an_input_shape_that_does_not_fit_is_refused_and_alternatives_are_named(text, shape, message):
    with pytest.raises(ValueError, match=message):
        build(text, shape)


def test_one_class_is_refused():
    with pytest.raises(ValueError, match="at least two classes, got 1"):
        build("linear", GREY, classes=1)


def test_widths_must_be_positive():
    with pytest.raises(ValueError, match="hidden"):
        parse_entry("mlp(hidden=[0])", MODELS)


def test_the_text_of_a_model_can_be_parsed():
    assert str(parse_entry("mlp(hidden=[32, 16])", MODELS)) == "mlp(hidden=[32, 16])"
    assert str(parse_entry("mlp", MODELS)) == "mlp"


def test_a_gpt_sees_no_later_token():
    network = build("gpt(layers=2, heads=4, width=32)", (12,))
    tokens = torch.randint(10, (3, 12))
    changed = tokens.clone()
    changed[:, 7:] = (changed[:, 7:] + 1) % 10
    before, after = network(tokens), network(changed)
    assert torch.allclose(before[:, :7], after[:, :7], atol=1e-6)
    assert not torch.allclose(before[:, 7:], after[:, 7:], atol=1e-3)


def test_a_new_gpt_guesses_and_its_dropout_acts_in_training_only():
    network = build("gpt(dropout=0.5)", (16,), classes=50)
    tokens = torch.randint(50, (8, 16))
    loss = nn.functional.cross_entropy(network.eval()(tokens).flatten(0, 1), tokens.flip(0).flatten())
    assert loss.item() == pytest.approx(math.log(50), rel=0.02)
    assert torch.equal(network(tokens), network(tokens))
    assert not torch.equal(network.train()(tokens), network(tokens))


@pytest.mark.parametrize(
    ("text", "shape", "tokens", "reason"),
    [
        ("gpt(heads=3)", (16,), True, "width=64 must be a multiple of heads=3"),
        ("gpt(context=8)", (16,), True, "gpt.context=8. is too short.* Use at least context=16"),
        ("gpt", GREY, False, "gpt requires sequences of tokens, but the data are numbers. Use one of lenet5"),
        ("mlp", (16,), True, "mlp requires numbers, but the data are sequences of tokens. Use one of gpt"),
        ("gpt(width=100_000, heads=1)", (16,), True, "4e[+]10 numbers"),
    ],
)
def test_models_for_tokens_and_for_numbers_refuse_the_other(text, shape, tokens, reason):
    with pytest.raises(ValueError, match=reason):
        parse_entry(text, MODELS).build(shape, 10, tokens)
