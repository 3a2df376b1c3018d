"""What the ASU report concludes."""

from straggler.analysis.claims import Claim

__all__ = ["CLAIMS"]

CLAIMS: tuple[Claim, ...] = ()
