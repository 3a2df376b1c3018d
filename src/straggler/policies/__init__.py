"""WHEN: the catalogue of policies, in order of increasing complexity."""

from straggler.core import Policy
from straggler.policies.asynchronous import Asynchronous
from straggler.policies.synchronous import Synchronous

__all__ = ["POLICIES", "Asynchronous", "Synchronous"]

POLICIES: dict[str, type[Policy]] = {policy.name: policy for policy in (Asynchronous, Synchronous)}
