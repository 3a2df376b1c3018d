"""WHEN: the catalogue of policies, in order of increasing complexity."""

from straggler.core import Policy
from straggler.policies.asynchronous import Asynchronous
from straggler.policies.first_k import KAsync, KBatchAsync, KBatchSync, KSync
from straggler.policies.hybrid import Hybrid
from straggler.policies.stale_synchronous import StaleSynchronous
from straggler.policies.synchronous import Synchronous

__all__ = [
    "POLICIES",
    "Asynchronous",
    "Hybrid",
    "KAsync",
    "KBatchAsync",
    "KBatchSync",
    "KSync",
    "StaleSynchronous",
    "Synchronous",
]

POLICIES: dict[str, type[Policy]] = {
    policy.name: policy
    for policy in (
        Asynchronous,
        Synchronous,
        KSync,
        KBatchSync,
        KAsync,
        KBatchAsync,
        StaleSynchronous,
        Hybrid,
    )
}
