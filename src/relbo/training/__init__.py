"""Training: one loop, its data, when it stops, its checkpoints and its result."""

from relbo.training._fit import fit as fit
from relbo.training.data import Rows as Rows
from relbo.training.result import Fit as Fit
from relbo.training.starts import Starts as Starts
from relbo.training.stopping import Result as Result
from relbo.training.stopping import Stopping as Stopping
