"""Claims: what a source concluded (claims.toml), and how it is judged (protocol.toml)."""

import hashlib
import math
from collections.abc import Mapping
from datetime import UTC, date, datetime, time
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError

from straggler.analysis.study_statistics import Band
from straggler.config.registry import InputError, explain_validation_error, suggest_name
from straggler.running.untrusted_files import parse_toml

Range = Literal["points", "percent", "ratio", "any"]
POSSIBLE: dict[Range, tuple[float, float]] = {  # values beyond which no interval goes
    "points": (-100.0, 100.0),  # a difference of percentages
    "percent": (0.0, 100.0),
    "ratio": (0.0, math.inf),
    "any": (-math.inf, math.inf),
}
EXPLORATORY = "exploratory"  # the family of claims that the protocol does not mention
M = TypeVar("M", bound=BaseModel)


class Evidence(BaseModel):
    """A number that helps to explain a verdict."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    text: str
    contrast: str
    possible: Range = "points"
    scale: Literal["default", "paper"] | None = None  # only at this scale


class Rule(BaseModel):
    """What decides the verdict on a claim. It is replicated if its contrast is from `least` to `most`."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    contrast: str
    family: str = EXPLORATORY  # of claims whose tests are corrected together
    least: float = -math.inf
    most: float = math.inf
    margin: float | None = Field(None, gt=0)  # an effect within ± margin counts as none
    seeds: int | None = Field(None, ge=1)  # by default those of the protocol
    exact: bool = False  # about these very runs: it needs no interval, but three seeds
    lost: Literal["apart", "included"] = "apart"  # what happens to runs that did not converge
    possible: Range = "points"


class Claim(Rule):
    """A statement of the source."""

    key: str
    statement: str
    where: str  # in the source
    measured: str  # the contrast in words
    said: float | None = None  # by the source, if its published numbers do not give it
    unit: str = "points"
    constructed: bool = False  # decided by the design of the study: shown, not judged
    causes: tuple[Evidence, ...] = ()
    comment: str = ""

    @property
    def band(self) -> Band:
        return Band(self.least, self.most)

    @property
    def name(self) -> str:
        """The key in words, for figures."""
        return self.key.replace("-", " ")

    @property
    def bounds(self) -> str:
        """The values for which the claim counts as replicated, in words."""
        unit = self.unit_suffix
        if math.isinf(self.most):
            return f"at least {self.least:g}{unit}"
        if math.isinf(self.least):
            return f"at most {self.most:g}{unit}"
        return f"from {self.least:g} to {self.most:g}{unit}"

    @property
    def unit_suffix(self) -> str:
        return "" if self.unit == "points" else f" {self.unit}"


class Protocol(BaseModel):
    """The content of protocol.toml: what was fixed, and when."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    frozen: AwareDatetime | date | None = None  # a time needs its offset from UTC
    seeds: int | None = Field(None, ge=1)  # claims use the seeds below this number; by default all
    source_runs: int = Field(1, ge=1)  # behind each number of the source
    note: str = ""  # what was fixed when, in sentences
    defaults: dict[str, Any] = {}  # labels of every selection that does not mention them
    names: dict[str, str] = {}  # contrasts that others use by name
    claim: dict[str, dict[str, Any]] = {}
    sha256: str = ""  # of the file

    @property
    def start(self) -> datetime | None:
        """The time from which runs count as made under the protocol."""
        if self.frozen is None or isinstance(self.frozen, datetime):
            return self.frozen
        return datetime.combine(self.frozen, time.max, UTC)


class ClaimFile(BaseModel):
    """The content of claims.toml, with the rules of the protocol."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    defaults: dict[str, Any] = {}
    names: dict[str, str] = {}
    claim: tuple[Claim, ...] = ()
    protocol: Protocol = Protocol()


def read_claims(path: Path, words: Mapping[str, str]) -> ClaimFile:
    """Read claims.toml and protocol.toml beside it, with `{word}` replaced in all their texts."""
    claims, rules = read_texts(path, words), read_texts(path.with_name("protocol.toml"), words)
    protocol = parse_model(path.with_name("protocol.toml"), Protocol, rules)
    listed = [each if isinstance(each, dict) else {} for each in claims.get("claim", ())]
    keys = [str(each.get("key")) for each in listed]
    if unknown := [key for key in protocol.claim if key not in keys]:
        raise InputError(
            f"{path.with_name('protocol.toml')}: claims.toml has no claim {unknown[0]!r}. "
            f"{suggest_name(unknown[0], keys)}"
        )
    for part, more in (
        (claims, {"defaults": protocol.defaults, "names": protocol.names}),
        *((each, protocol.claim.get(key, {})) for key, each in zip(keys, listed, strict=True)),
    ):
        known = {name: value for name, value in more.items() if value != {}}
        if twice := [name for name in part if name in known]:
            raise InputError(f"{path}: {twice[0]!r} is also in protocol.toml. Keep it there only.")
        part |= known
    return parse_model(path, ClaimFile, claims | {"protocol": protocol})


def read_texts(path: Path, words: Mapping[str, str]) -> dict[str, Any]:
    """Return the content of a TOML file, with its SHA-256 if it is the protocol; {} if there is no file."""
    try:
        content = path.read_bytes()
        text = content.decode()
        for word, value in words.items():
            text = text.replace(f"{{{word}}}", value)
        found = parse_toml(text)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: {error}") from None
    return found | ({"sha256": hashlib.sha256(content).hexdigest()} if path.stem == "protocol" else {})


def parse_model(path: Path, model: type[M], content: dict[str, Any]) -> M:
    """Return the content of a file as a model; an error names the file."""
    try:
        return model(**content)
    except ValidationError as error:
        raise InputError(f"{path}: {explain_validation_error(error, Claim.model_fields)}") from None
