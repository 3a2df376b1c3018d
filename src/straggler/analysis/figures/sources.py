"""What a figure draws: records by their folders, by the names of sweeps, and by their settings."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from straggler.analysis.labels import expand_settings, find_differences, group_seeds, name_method
from straggler.config.registry import InputError
from straggler.record import Record, read_table

Source: TypeAlias = Record | str | Path | Sequence["Source"] | Mapping[str, "Source"]


def find_sources(source: Source, runs: Path, results: Path) -> Source:
    """Return a source with records, in which a name of a sweep stands for its runs."""
    if isinstance(source, Mapping):
        return {label: find_sources(one, runs, results) for label, one in source.items()}
    if not isinstance(source, Record | str | Path):
        return [find_sources(one, runs, results) for one in source]
    if isinstance(source, str) and (folder := find_sweep(source, results)) is not None:
        source = folder
    return find_records(source, runs)


def find_sweep(name: str, results: Path) -> Path | None:
    """Return the folder of a sweep's results by its name or its path; None if there is none."""
    folders = (Path(name), results / name)
    return next((folder for folder in folders if (folder / "summaries.parquet").is_file()), None)


def select_records(source: Source, only: Sequence[str]) -> Source:
    """Return the records with these settings, such as `workers=8` or `method=asgd`."""
    if not only:
        return source
    if isinstance(source, Mapping):
        return {label: select_records(one, only) for label, one in source.items()}
    records = find_records(source)
    every = [
        expand_settings(record.settings) | {"method": name_method(record.settings)} for record in records
    ]
    for wanted in only:
        key, separator, value = (part.strip() for part in wanted.partition("="))
        known = sorted({str(settings.get(key)) for settings in every if key in settings})
        if not separator or not known:
            keys = ", ".join(find_differences([record.settings for record in records])) or "nothing"
            raise InputError(
                f"only={wanted!r} must be a setting of the runs and its value. They differ in {keys}."
            )
        if value not in known:
            raise InputError(f"only={wanted!r} leaves no run. {key} is {' or '.join(known)}.")
        kept = [n for n, settings in enumerate(every) if str(settings.get(key)) == value]
        records, every = [records[n] for n in kept], [every[n] for n in kept]
    return records


def find_records(source: Source, folder: Path = Path("runs")) -> list[Record]:
    """Return the records of a source; a folder with a sweep's results stands for its runs in `folder`."""
    if isinstance(source, Record):
        return [source]
    if isinstance(source, Mapping):
        return find_records(list(source.values()), folder)
    if not isinstance(source, str | Path):
        return [record for one in source for record in find_records(one, folder)]
    summaries = Path(source) / "summaries.parquet"
    if not summaries.is_file():
        return [Record(source)]
    folders = [folder / name for name in read_table(summaries)["id"]]
    found = [path for path in folders if (path / "experiment.toml").is_file()]
    if not found:
        raise InputError(f"None of the runs of {source} is in {folder}. Pass the folder that has them.")
    return [Record(path) for path in found]


def group_records(
    source: Source, labels: Sequence[str] | None, axes: Sequence[str], folder: Path
) -> dict[str, list[Record]]:
    """Group the records by their labels, or by the settings in which they differ."""
    if isinstance(source, Mapping):
        return {label: find_records(one, folder) for label, one in source.items()}
    records = find_records(source, folder)
    groups = group_seeds(records, axes)
    if labels is None:
        return groups
    if len(labels) == len(records):
        named: dict[str, list[Record]] = {}
        for label, record in zip(labels, records, strict=True):
            named.setdefault(label, []).append(record)
        return named
    if len(labels) != len(groups):
        rule = f"{len(records)} (one per run) or {len(groups)} (one per line)"
        raise InputError(f"{len(labels)} labels do not fit: pass {rule}. The lines are {', '.join(groups)}.")
    return dict(zip(labels, groups.values(), strict=True))
