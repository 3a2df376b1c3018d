"""Text and objects: printed text can be parsed again, and only plain values are ever parsed."""

import math
from collections.abc import Mapping
from contextlib import suppress
from typing import Annotated, Any, get_args

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from pydantic import Field, ValidationError
from pydantic.fields import FieldInfo

from straggler.algorithms.aggregations import AGGREGATIONS
from straggler.algorithms.channels import CHANNELS
from straggler.algorithms.corrections import CORRECTIONS
from straggler.algorithms.optimizers import OPTIMIZERS
from straggler.algorithms.policies import POLICIES
from straggler.algorithms.work import WORK
from straggler.config.registry import (
    CatalogueEntry,
    explain_validation_error,
    format_value,
    parse_call,
    parse_entry,
    suggest_name,
)
from straggler.problems.datasets import DATASETS
from straggler.problems.models import MODELS
from straggler.problems.partitions import PARTITIONS
from straggler.timing.churn import CHURN
from straggler.timing.laws import DELAYS, Constant, Gaussian
from straggler.timing.links import LINKS

CATALOGUES: dict[str, Mapping[str, type[CatalogueEntry]]] = {
    "work": WORK,
    "channel": CHANNELS,
    "link": LINKS,
    "churn law": CHURN,
    "aggregation": AGGREGATIONS,
    "policy": POLICIES,
    "correction": CORRECTIONS,
    "optimizer": OPTIMIZERS,
    "delay law": DELAYS,
    "partition": PARTITIONS,
    "model": MODELS,
    "data set": DATASETS,
}
ENTRIES = [(what, name) for what, catalogue in CATALOGUES.items() for name in catalogue]


def like(default: Any) -> st.SearchStrategy[Any]:
    """Return values of a field without a type, similar to its default."""
    if isinstance(default, bool):
        return st.booleans()
    if isinstance(default, list):
        return st.tuples(*map(like, default)).map(list)
    return st.just(default) | st.floats(0.01, 0.9)


def values(field: FieldInfo) -> st.SearchStrategy[Any]:
    """Return values that a field accepts by its type, so that future entries are covered too."""
    if field.annotation is Any:
        return like(field.get_default())
    if type(None) in get_args(field.annotation):  # the bounds of an optional number are those of the number
        (number,) = set(get_args(field.annotation)) - {type(None)}
        return st.none() | values(FieldInfo.merge_field_infos(field, annotation=number))
    kind: Any = Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation
    return st.from_type(kind).filter(lambda value: not isinstance(value, float) or math.isfinite(value))


@st.composite
def entries(draw: st.DrawFn, entry: type[CatalogueEntry]) -> CatalogueEntry:
    chosen = {
        key: draw(values(field))
        for key, field in entry.model_fields.items()
        if field.is_required() or draw(st.booleans())
    }
    try:
        return entry(**chosen)
    except ValidationError:  # such as low above high: not every combination makes sense
        assume(False)
        raise


INNER = ["local(optimizer='sgd(momentum=0.9)', proximal=0.1)"]
INNER += ["local(steps=3, keep=True)", "elastic(steps=2)", "local", "elastic"]


@pytest.mark.parametrize("text", INNER)
def test_work_with_an_optimizer_is_read_back(text: str) -> None:
    entry = parse_entry(text, WORK)
    again = parse_entry(str(entry), WORK)
    assert again == entry and str(again) == str(entry) and again.identity() == entry.identity()


@pytest.mark.slow
@pytest.mark.parametrize(("what", "name"), [each for each in ENTRIES if each[1] not in ("local", "elastic")])
@settings(max_examples=30)
@given(data=st.data())
def test_text_is_read_back(what: str, name: str, data: st.DataObject) -> None:
    catalogue = CATALOGUES[what]
    entry = data.draw(entries(catalogue[name]))
    again = parse_entry(str(entry), catalogue)
    assert type(again) is type(entry)
    assert again.model_dump() == entry.model_dump()
    assert again == entry and hash(again) == hash(entry) and str(again) == str(entry)


@pytest.mark.parametrize(("what", "name"), ENTRIES)
def test_an_entry_is_found_by_its_name_and_as_a_table(what: str, name: str) -> None:
    catalogue = CATALOGUES[what]
    required = {key: 1 for key, field in catalogue[name].model_fields.items() if field.is_required()}
    if name in ("trace", "churn-trace"):
        required = {"file": "delays.csv"}
    if "workers" in required:
        required["workers"] = [1]
    if name == "text":
        required = {"path": "corpus.txt"}
    if "labels" in required:
        required["labels"] = [1]
    entry = parse_entry({"name": name, **required}, catalogue)
    assert type(entry) is catalogue[name]
    assert parse_entry(entry, catalogue) is entry
    if not required:
        assert parse_entry(name, catalogue) == entry
        assert str(entry) == entry.name  # defaults are not written


@given(value=st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists, max_leaves=5))
@example(value=["ﬁ", "true", "None", "class", "nan", "", "it's", "a\n"])  # ﬁ is an identifier, but not itself
def test_every_plain_value_is_read_back(value: Any) -> None:
    assert parse_call(f"f(key={format_value(value)})") == ("f", [], {"key": value})


@given(value=st.floats(allow_nan=False, allow_infinity=False) | st.just(math.inf))
def test_every_number_is_read_back(value: float) -> None:
    _, positional, _ = parse_call(f"f({format_value(value)})")
    assert positional == [value]


def test_words_need_no_quotes() -> None:
    assert parse_call("f(sum, key=mean, on=true, off=false, no=none)") == (
        "f",
        ["sum"],
        {"key": "mean", "on": True, "off": False, "no": None},
    )


def test_entries_with_other_settings_differ() -> None:
    assert Constant(seconds=1) != Constant(seconds=2)
    assert Constant(seconds=0) != Gaussian(mean=0, std=0)
    assert Constant(seconds=1) == Constant(seconds=1.0) == parse_entry("constant(1)", DELAYS)


def test_positional_values_come_in_the_order_of_the_keys() -> None:
    assert parse_entry("gaussian(3, 0.5)", DELAYS) == Gaussian(mean=3, std=0.5)
    assert parse_entry("gaussian(3, std=0.5)", DELAYS) == Gaussian(mean=3, std=0.5)
    assert parse_entry("constant(4, workers=[0, 2])", DELAYS) == Constant(seconds=4, workers=(0, 2))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("constant(1, [0], 2)", "constant takes at most 2 values: seconds, workers"),
        ("gaussian(1, mean=1)", "mean is set twice"),
        ("constant(seconds=1, seconds=2)", "in the parentheses"),
        ("constant", "seconds is missing. Add seconds="),
        ("constant(second=1)", "unknown key 'second'. Did you mean 'seconds'?"),
        ("constant(-1)", "seconds must be greater than or equal to 0, got -1"),
        ("constant(inf)", "seconds must be a finite number, got inf"),
        ("constant(fast)", "seconds must be a valid number"),
        ("constantly(1)", "Unknown delay law 'constantly'. Did you mean 'constant'?"),
        ("zzz", "Unknown delay law 'zzz'. Known: constant, "),
        ("uniform(3, 1)", "low=3.0 is above high=1.0"),
    ],
)
def test_errors_are_explained_in_one_line(text: str, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse_entry(text, DELAYS)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "(1)",
        "constant(",
        "constant 1)",
        "constant(1",
        "constant(1))",
        "constant(seconds=)",
        "constant(1 2)",
        "two words",
        "constant(1)(2)",
        "constant(1) + constant(2)",
        "constant(*[1])",
        "constant(**{'seconds': 1})",
        "constant({[1]: 2})",
        "constant(seconds=1, **{})",
        "constant(trace.csv)",
        f"constant({'[' * 5000})",
        f"constant({'-' * 5000}1)",
    ],
)
def test_bad_syntax_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"expected `name` or|write key=value in the parentheses"):
        parse_entry(text, DELAYS)


@pytest.mark.parametrize(
    "code",
    [
        "__import__('os')",
        "__import__('pathlib').Path('made').touch()",
        "open('made', 'w')",
        "(lambda: 1)()",
        "[open(name, 'w') for name in ['made']]",
        "2 ** 2 ** 100",
        "'a' * 10 ** 12",
        "f'{open(chr(109), chr(119))}'",
        "().__class__",
    ],
)
def test_no_code_is_evaluated(code: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for text in (f"constant({code})", f"constant(seconds={code})", f"constant(1, workers=[{code}])"):
        with pytest.raises(ValueError, match="in the parentheses"):
            parse_entry(text, DELAYS)
    assert not list(tmp_path.iterdir())


@settings(max_examples=300)
@given(text=st.text() | st.text(alphabet="constant()[]{},=*'\"0123456789.e- :ab_", max_size=40))
def test_any_text_is_an_entry_or_a_value_error(text: str) -> None:
    for candidate in (text, f"constant({text})"):
        with suppress(ValueError):
            assert isinstance(parse_entry(candidate, DELAYS), CatalogueEntry)


@pytest.mark.parametrize("value", [3, None, 1.5, ["constant(1)"], object])
def test_values_of_other_types_are_refused(value: Any) -> None:
    with pytest.raises(ValueError, match=r"is not a delay law\. Pass text"):
        parse_entry(value, DELAYS)


def test_an_entry_of_another_catalogue_is_refused() -> None:
    with pytest.raises(ValueError, match=r"is not a policy\. Pass text such as 'asynchronous'"):
        parse_entry(Constant(seconds=1), POLICIES)


def test_a_table_without_a_name_is_refused() -> None:
    with pytest.raises(ValueError, match="Unknown delay law ''"):
        parse_entry({"seconds": 1}, DELAYS)


def test_suggestions() -> None:
    assert suggest_name("asdg", ["sgd", "ssgd", "asgd"]) == "Did you mean 'asgd'? Known: sgd, ssgd, asgd"
    assert suggest_name("qqq", ["sgd"]) == "Known: sgd"


def test_the_remedy_shows_the_default_if_there_is_one() -> None:
    class Sample(CatalogueEntry):
        name = "sample"
        size: int = Field(4, ge=1)

    with pytest.raises(ValidationError) as caught:
        Sample(size=0)
    said = explain_validation_error(caught.value, Sample.model_fields)
    assert said == "size must be greater than or equal to 1, got 0; for example size=4"


def test_entries_are_immutable() -> None:
    entry = Constant(seconds=1)
    with pytest.raises(ValidationError):
        entry.seconds = 2  # type: ignore[misc]
