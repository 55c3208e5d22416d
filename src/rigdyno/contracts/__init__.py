"""Every interface that one can implement, in one place.

One implementation is one file, found by its name: `workloads/tensor_add.py` *is* the workload `tensor_add`. The first
line of its docstring is what `rigdyno list` shows. Workloads, updates and arrangements are frozen dataclasses: the
constructor is the configuration.
"""

from rigdyno.contracts.launching import Exit as Exit
from rigdyno.contracts.launching import Finds as Finds
from rigdyno.contracts.launching import Launch as Launch
from rigdyno.contracts.launching import Launcher as Launcher
from rigdyno.contracts.launching import Left as Left
from rigdyno.contracts.launching import Opening as Opening
from rigdyno.contracts.launching import Scope as Scope
from rigdyno.contracts.launching import Session as Session
from rigdyno.contracts.suite import Machine as Machine
from rigdyno.contracts.suite import Observer as Observer
from rigdyno.contracts.suite import Progress as Progress
from rigdyno.contracts.suite import Suite as Suite
from rigdyno.contracts.suite import Wanted as Wanted
from rigdyno.contracts.training import ANY_FRAMEWORK as ANY_FRAMEWORK
from rigdyno.contracts.training import DEFAULT_FRAMEWORK as DEFAULT_FRAMEWORK
from rigdyno.contracts.training import TORCH as TORCH
from rigdyno.contracts.training import Arrangement as Arrangement
from rigdyno.contracts.training import CannotRun as CannotRun
from rigdyno.contracts.training import Channel as Channel
from rigdyno.contracts.training import Collective as Collective
from rigdyno.contracts.training import Framework as Framework
from rigdyno.contracts.training import Mark as Mark
from rigdyno.contracts.training import Meter as Meter
from rigdyno.contracts.training import Options as Options
from rigdyno.contracts.training import Probe as Probe
from rigdyno.contracts.training import Requirement as Requirement
from rigdyno.contracts.training import Samples as Samples
from rigdyno.contracts.training import Step as Step
from rigdyno.contracts.training import Steps as Steps
from rigdyno.contracts.training import Training as Training
from rigdyno.contracts.training import TrainingJob as TrainingJob
from rigdyno.contracts.training import TrainStep as TrainStep
from rigdyno.contracts.training import Unavailable as Unavailable
from rigdyno.contracts.training import Update as Update
from rigdyno.contracts.training import Validation as Validation
from rigdyno.contracts.training import WorkerPlace as WorkerPlace
from rigdyno.contracts.training import Workload as Workload
from rigdyno.contracts.training import World as World
from rigdyno.contracts.training import card_of as card_of
from rigdyno.contracts.training import no_mark as no_mark
