"""Text: every token is predicted once, documents stay apart, and files are read as data only."""

import hashlib
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from straggler.config.registry import InputError, parse_entry
from straggler.engines.pool.shared_memory import pack_shared
from straggler.experiment import Experiment
from straggler.problems.datasets import DATASETS, MobyDick, TextFile
from straggler.problems.downloads.cache import inspect_cache, load_published
from straggler.problems.downloads.formats import PublishedText
from straggler.problems.downloads.sources import DataError, FolderSource
from straggler.problems.losses import IGNORED_TARGET
from straggler.problems.supervised import SupervisedProblem
from straggler.problems.text import TokenData, TokenExamples
from straggler.timing.durations import Durations

WORDS = "the quick brown fox jumps over the lazy dog. "


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STRAGGLER_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("STRAGGLER_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "cache"


def load(content: str, **options: Any) -> TokenData:
    Path("corpus.txt").write_text(content, encoding="utf-8", newline="")
    return TextFile(path="corpus.txt", **options).load()


def read_sequences(data: TokenData, examples: TokenExamples) -> list[tuple[str, str]]:
    """Return the characters of inputs and targets, without padding."""
    inputs, targets = examples.fetch(np.arange(len(examples)))
    kept = (targets != IGNORED_TARGET).numpy()
    assert not inputs.numpy()[~kept].any()
    assert examples.count_tokens(np.arange(len(examples))).tolist() == kept.sum(axis=1).tolist()
    decode = np.array(data.classes)
    pairs = zip(inputs.numpy(), targets.numpy(), kept, strict=True)
    return [("".join(decode[x[keep]]), "".join(decode[y[keep]])) for x, y, keep in pairs]


@settings(max_examples=60)
@given(
    st.lists(st.text(alphabet="abcdé☃\n", min_size=0, max_size=60), min_size=1, max_size=8),
    st.integers(1, 9),
    st.sampled_from([0.1, 0.5]),
)
def test_every_token_after_the_first_of_a_document_is_one_target(
    documents: list[str], context: int, share: float
) -> None:
    content = "\n--\n".join(documents)
    wanted = content.split("\n--\n")
    try:
        data = load("\n--\n".join(wanted), context=context, separator="--", test=share)
    except DataError as error:
        assert "no text" in str(error) or "longer text" in str(error)
        return
    train, test = data.train, data.test
    assert len(test) == round(share * (len(train) + len(test)))
    numbers = np.concatenate([train.known_labels, test.known_labels])
    found = [*read_sequences(data, train), *read_sequences(data, test)]
    texts = [text for text in [*(text + "\n" for text in wanted[:-1]), wanted[-1]] if text]
    for number, text in enumerate(texts):
        mine = [pair for pair, document in zip(found, numbers, strict=True) if document == number]
        assert "".join(targets for _, targets in mine) == text[1:]
        assert "".join(inputs for inputs, _ in mine) == text[:-1]
        assert all(len(inputs) == context for inputs, _ in mine[:-1])


def test_the_end_of_every_document_is_for_testing() -> None:
    data = load("\n".join(f"{letter * 99}\n%" for letter in "abcdefgh"), context=10, separator="%")
    assert len(data.test) == 8
    assert data.test.known_labels.tolist() == list(range(8))
    assert [inputs[0] for inputs, _ in read_sequences(data, data.test)] == list("abcdefgh")


def test_tokens_are_a_memory_map_of_the_smallest_type() -> None:
    data = load(WORDS * 30)
    assert isinstance(data.tokens, np.memmap)
    assert (data.tokens.dtype, len(data.classes)) == (np.uint8, len(set(WORDS)))
    many = load("".join(map(chr, range(0x4E00, 0x4E00 + 2000))))
    assert many.tokens.dtype == np.uint16
    assert read_sequences(many, many.train)[0][0][0] == chr(0x4E00)
    assert data.chance == pytest.approx(100 * WORDS.count(" ") / len(WORDS))


def test_a_problem_reaches_other_processes_without_its_tokens() -> None:
    Path("corpus.txt").write_text(WORDS * 40_000)
    problem = Experiment(dataset="text('corpus.txt')", model="gpt(width=8)", partition="by-stream").problem()
    packed = pack_shared(problem)
    assert sum(len(memory.bytes) for memory in packed) < 800_000 < Path("corpus.txt").stat().st_size
    again: SupervisedProblem = pickle.loads(packed[0].bytes)
    x, buffers = problem.initial_model()
    assert again.gradient(x, buffers, 2, 1).loss == problem.gradient(x, buffers, 2, 1).loss


def id_of(text: str, **options: Any) -> str:
    return Experiment(dataset=text, model="gpt", **options).id


def test_the_id_depends_on_the_content_and_not_on_the_path(tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    for name in ("a.txt", "b.txt", "more/b.txt"):
        Path(name).write_text(WORDS * 30)
    first = id_of("text(path='a.txt')")
    assert first == id_of("text('./b.txt')") == id_of(f"text(path='{tmp_path}/more/b.txt')")
    assert first == id_of("text(path=more)")
    assert (
        len({first, *(id_of(f"text('a.txt', {more})") for more in ("context=32", "separator=x", "test=.2"))})
        == 4
    )
    Path("a.txt").write_text(WORDS * 29 + WORDS.upper())
    assert id_of("text(path='a.txt')") not in (first, id_of("text('b.txt')"))


def test_a_folder_has_a_document_per_file() -> None:
    Path("books").mkdir()
    for name in "cab":
        Path(f"books/{name}.txt").write_text(name * 200)
    Path("books/notes.md").write_text("not a text file")
    data = parse_entry("text(path=books)", DATASETS).load()
    assert isinstance(data, TokenData)
    assert data.documents.tolist() == [200, 400, 600]
    assert data.classes == ("a", "b", "c")


def test_text_works_in_files_and_on_the_command_line(cache: Path) -> None:
    Path("corpus.txt").write_text(WORDS * 30)
    settings = 'dataset = "text(path=\'corpus.txt\', context=16)"\nmodel = "gpt(layers=1, width=16)"\n'
    Path("run.toml").write_text(settings + "workers = 2\nupdates = 3\n")
    record = Experiment.from_toml("run.toml").run(jobs=1)
    assert record.summary["test_loss"] < 5
    again = Experiment.from_record(record)
    assert again.id == record.path.name
    assert "corpus.txt" in record.settings["dataset"]


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda path: None, r"corpus.txt does not exist. The current folder is "),
        (os.mkfifo, "corpus.txt is not a regular file"),
        (lambda path: path.write_bytes(b"abc\xff" * 100), "corpus.txt is not UTF-8 text.*iconv"),
        (lambda path: path.write_text(""), "corpus.txt contains no text"),
        (lambda path: path.write_text("abc"), "1 training and 0 test sequences.*smaller context"),
        (lambda path: path.mkdir(), "corpus.txt contains no .txt files"),
    ],
)
def test_a_text_that_cannot_be_used_is_refused_and_leaves_nothing(
    make: Any, reason: str, cache: Path
) -> None:
    make(Path("corpus.txt"))
    with pytest.raises(DataError, match=reason):
        Experiment(dataset="text('corpus.txt')", model="gpt").run("runs")
    assert not Path("runs").exists()
    assert not list(cache.glob("*partial"))


def test_a_damaged_cache_of_tokens_is_reported(cache: Path) -> None:
    load(WORDS * 30)
    (folder,) = (cache / "tokens").iterdir()
    (folder / "tokens.npy").write_bytes((folder / "tokens.npy").read_bytes()[:-7])
    with pytest.raises(DataError, match=r"is damaged .*Delete the folder"):
        load(WORDS * 30)


def test_by_length_follows_the_tokens_of_a_batch() -> None:
    Path("corpus.txt").write_text("\n".join(f"{'x' * length}\n%" for length in range(3, 60)))
    experiment = Experiment(
        dataset="text('corpus.txt', separator='%', context=40)",
        model="gpt(width=8)",
        batch_size=1,
        workers=2,
        validation=0.1,
        delay="by-length",
    )
    problem = experiment.problem()
    assert isinstance(problem, SupervisedProblem)
    durations: Durations = experiment.durations()
    durations.use_problem(problem)
    examples: Any = problem.splits["train"]
    seconds, lengths = [], []
    for index in range(20):
        seconds.append(sum(durations.job_parts(0, index, index)))
        lengths += examples.examples.count_tokens(examples.chosen[problem.batch(0, index)]).tolist()
    assert np.allclose(np.divide(seconds, lengths), seconds[0] / lengths[0])
    assert len(set(lengths)) > 5


def write_book(folder: Path) -> Path:
    folder.mkdir(parents=True)
    for number in (1, 2, 10):
        (folder / f"chapter_{number}.txt").write_text(f"Chapter {number}. " + WORDS)
    return folder


CHAPTERS = "".join(f"Chapter {number}. {WORDS}\n\f\n" for number in (1, 2, 10))
CHECKSUM = hashlib.sha256(CHAPTERS.encode()).hexdigest()
BOOK = PublishedText("book", ["chapter_*.txt"], CHECKSUM, "public domain")


def test_a_published_text_is_verified_and_its_documents_are_in_order(cache: Path, tmp_path: Path) -> None:
    folder = write_book(tmp_path / "npm")
    file = load_published(BOOK, [FolderSource(folder)])
    assert file.read_text() == CHAPTERS
    assert inspect_cache(BOOK).checksum_ok
    assert inspect_cache(BOOK).license == "public domain"
    file.write_text(file.read_text() + "more")
    assert "is damaged" in inspect_cache(BOOK).problem
    with pytest.raises(DataError, match=r"book is not available"):
        load_published(BOOK, [])
    (folder / "chapter_2.txt").write_text("other")
    with pytest.raises(DataError, match=r"has other files: SHA-256 of book must be"):
        load_published(BOOK, [FolderSource(folder)])


def test_a_copy_of_the_cache_serves_as_a_source(cache: Path, tmp_path: Path) -> None:
    load_published(BOOK, [FolderSource(write_book(tmp_path / "npm"))])
    cache.rename(tmp_path / "copy")
    assert load_published(BOOK, [], tmp_path / "copy").read_text().count("\f") == 3


@pytest.mark.slow
def test_a_novel_is_downloaded_and_verified(cache: Path) -> None:
    try:
        data = MobyDick(context=128).load()
    except DataError as error:
        pytest.skip(f"no source is reachable: {error}")
    assert (len(data.documents), len(data.classes), len(data.tokens)) == (138, 89, 1_212_980)
    assert MobyDick().status().license.startswith("public domain")


def test_a_sequence_length_of_zero_is_refused() -> None:
    with pytest.raises(InputError, match="context"):
        Experiment(dataset="text('corpus.txt', context=0)", model="gpt")
