"""Straggler: what happens to SGD when workers are not equally fast."""

from straggler.catalogue import InputError
from straggler.core import Arrival, Correction, Engine, Gradient, Job, Optimizer, Policy, Server
from straggler.experiment import Experiment
from straggler.record import Record
from straggler.train import Budget, train

__all__ = [
    "Arrival",
    "Budget",
    "Correction",
    "Engine",
    "Experiment",
    "Gradient",
    "InputError",
    "Job",
    "Optimizer",
    "Policy",
    "Record",
    "Server",
    "train",
]
