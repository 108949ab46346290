import math
import statistics

import pytest
from scipy import stats

from reports.papers.comparison import interval, judge_mean
from reports.papers.published import Published


def test_intervals_are_those_of_scipy():
    values = [79.5, 80.1, 78.2, 80.3, 77.9]
    mean, half = interval(values)
    low, high = stats.t.interval(0.95, len(values) - 1, loc=statistics.mean(values), scale=stats.sem(values))
    assert (mean - half, mean + half) == pytest.approx((low, high), rel=1e-12)
    assert interval([5.0, 7.0]) == pytest.approx((6.0, math.nan), nan_ok=True)
    assert all(map(math.isnan, (*interval([]), *interval([math.nan] * 3))))


@pytest.mark.parametrize(
    ("mean", "ci95", "published", "verdict"),
    [
        (80.0, 1.0, Published({}, 80.9), "in the interval"),
        (80.0, 1.0, Published({}, 81.1), "apart"),
        (80.0, 1.0, Published({}, 82.4, 1.5), "intervals overlap"),
        (80.0, 1.0, Published({}, 82.6, 1.5), "apart"),
        (80.0, math.nan, Published({}, 80.0), "too few trainings"),
        (math.nan, math.nan, Published({}, 80.0), "not run"),
        (80.0, 1.0, None, "not known"),
    ],
)
def test_verdicts(mean, ci95, published, verdict):
    assert judge_mean(mean, ci95, published) == verdict
    if verdict in ("apart", "in the interval"):
        assert judge_mean(mean, ci95, published, is_protocol=False) == "other settings"
