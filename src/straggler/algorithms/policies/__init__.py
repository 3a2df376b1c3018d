"""WHEN: the catalogue of policies, in order of increasing complexity."""

from straggler.algorithms.policies.asynchronous import Asynchronous
from straggler.algorithms.policies.dynamic_stale_synchronous import DynamicStaleSynchronous
from straggler.algorithms.policies.first_k import KAsync, KBatchAsync, KBatchSync, KSync
from straggler.algorithms.policies.hybrid import Hybrid
from straggler.algorithms.policies.malenia import Malenia
from straggler.algorithms.policies.paced import Paced
from straggler.algorithms.policies.ringleader import Ringleader
from straggler.algorithms.policies.ringmaster import Ringmaster
from straggler.algorithms.policies.stale_synchronous import StaleSynchronous
from straggler.algorithms.policies.synchronous import Synchronous
from straggler.config.registry import Catalogue
from straggler.core import Policy

__all__ = [
    "POLICIES",
    "Asynchronous",
    "DynamicStaleSynchronous",
    "Hybrid",
    "KAsync",
    "KBatchAsync",
    "KBatchSync",
    "KSync",
    "Malenia",
    "Paced",
    "Ringleader",
    "Ringmaster",
    "StaleSynchronous",
    "Synchronous",
]

POLICIES = Catalogue(
    "policy",
    "policies",
    Policy,
    [
        *(Asynchronous, Synchronous, KSync, KBatchSync, KAsync, KBatchAsync, Ringmaster, Malenia, Ringleader),
        *(StaleSynchronous, DynamicStaleSynchronous, Paced, Hybrid),
    ],
)
