from dataclasses import asdict

import pytest

import gatdiag
from gatdiag.diagnosis import SEVERITIES, diagnose, examine
from gatdiag.errors import InputError
from tests.run.synthetic import synthetic_run


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    return [
        gatdiag.load(synthetic_run(folder / name, steps=30, layers=4, neurons=2, collapse=name == "stuck"))
        for name in ("stuck", "fine")
    ]


def test_a_stuck_network_is_told_from_one_that_trains(runs):
    stuck, fine = map(diagnose, runs)
    assert fine == []
    assert {"vanishing-gradients", "oversmoothing", "unchanged-weights"} <= {finding.code for finding in stuck}


def test_the_most_severe_comes_first(runs):
    for run in runs:
        ranks = [SEVERITIES.index(finding.severity) for finding in examine(run)]
        assert ranks == sorted(ranks)
        assert diagnose(run) == [finding for finding in examine(run) if finding.severity != "info"]


def test_a_folder_will_do_and_findings_are_plain_data(runs):
    assert gatdiag.diagnose(str(runs[0].folder)) == gatdiag.diagnose(runs[0])
    assert {"code", "severity", "evidence", "layers", "cause", "cure"} <= {*asdict(diagnose(runs[0])[0])}
    with pytest.raises(InputError):
        gatdiag.diagnose("nowhere")
