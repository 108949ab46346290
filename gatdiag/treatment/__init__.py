"""Treatment: train, diagnose, apply the proposed remedy, train again from the same seeds, and compare.

    treatment  treat(): runs the trainings
    outcome    Treatment and Trial: the results; Metric: the logged number that is compared
    actions    the table of actions: changes to a fresh model, to optimizer steps, or to inputs
    page       the treatment as an HTML page in its folder

A diagnosis describes its remedy as code to paste and as data (`gatdiag.diagnosis.Action`); actions are carried out
here. The user's training loop stays as it is: settings of the optimizer are changed by torch's hooks during each step,
and restored after it.
"""

from gatdiag.diagnosis import Action
from gatdiag.treatment.actions import ACTIONS
from gatdiag.treatment.outcome import Metric, Treatment, Trial
from gatdiag.treatment.treatment import treat

__all__ = ["ACTIONS", "Action", "Metric", "Treatment", "Trial", "treat"]
