"""One colour per method: positions in the palette that are the same in every figure."""

import zlib
from collections.abc import Mapping, Sequence

from straggler.analysis.figures.description import COLOURS, choose_colour, choose_dash
from straggler.analysis.labels import RunData, name_method

# A method's place in this text is its position in the palette: a row has every colour once, and a column has
# one colour with different dashes and markers. Methods that are often compared differ in colour. Add new ones
# at the end.
ORDER = """
asgd         ssgd      k-sync       ssp        k-async  hybrid     sgd        k-batch-sync
nag-asgd     dc-asgd   dana         ga         sa       multi-asgd async-adam k-batch-async
local-sgd    dana-dc   dana-slim    ringmaster rennala  malenia    dana-ga    dana-sa
ringleader   diloco    async-diloco fedbuff    fedasync slowmo     fedprox    easgd
dc-asgd-a    muon      ia2sgd       aced       ca2fl    lookahead  ormo       ringmaster-restart
smega2       dssp      paced        fadas      inverse-frequency weight-prediction
ringmaster-muon delay-adaptive
"""
POSITIONS = {name: position for position, name in enumerate(ORDER.split())}
MOST_POSITIONS = 64  # with different colours or markers


def find_position(method: str) -> int:
    """Return a method's position in the palette; settings such as `(k=3)` do not matter.

    A method that is not in the table has a position that depends on its name only.
    """
    if (position := POSITIONS.get(method.split("(")[0])) is not None:
        return position
    return zlib.crc32(method.encode()) % len(POSITIONS)


def assign_colours(groups: Mapping[str, Sequence[RunData]]) -> dict[str, int]:
    """Return the positions of the settings of a figure by their labels.

    Methods have their colours, and settings of one method differ in dash and marker. Where all settings are
    of one method, they have different colours, of which the first is the method's.
    """
    methods = {label: name_method(runs[0].settings) if runs else label for label, runs in groups.items()}
    if len({*methods.values()}) == 1:
        start = find_position(next(iter(methods.values())))
        return {label: (start + number) % MOST_POSITIONS for number, label in enumerate(methods)}
    found, looks = dict[str, int](), set[tuple[str, str]]()
    for label, method in methods.items():
        rows = range(0, MOST_POSITIONS, len(COLOURS))
        choices = [(find_position(method) + row) % MOST_POSITIONS for row in rows]
        unused = [one for one in choices if one not in found.values()] or choices
        free = [one for one in unused if (choose_colour(one), choose_dash(one)) not in looks]
        found[label] = (free or unused)[0]
        looks.add((choose_colour(found[label]), choose_dash(found[label])))
    return found
