"""Treatment: train, diagnose, apply the remedy that the diagnosis names, train again, and say whether it helped.

    treatment  treat(): the trainings, in turn
    outcome    Treatment and Trial: what came of them; by which logged number, and from where on one is better
    actions    the table of what a remedy can do by itself: to a fresh model, to steps of the optimizer, to inputs
    page       the treatment as a page, in its folder

The diagnosis says as data (`gatdiag.diagnosis.Action`) what its line to paste does; here it is done. Nothing is changed
on the user's loop: the optimizer's settings are changed through torch's hooks while it steps, and given back.
"""

from gatdiag.diagnosis import Action
from gatdiag.treatment.actions import ACTIONS
from gatdiag.treatment.outcome import Treatment, Trial, Yardstick
from gatdiag.treatment.treatment import treat

__all__ = ["ACTIONS", "Action", "Treatment", "Trial", "Yardstick", "treat"]
