import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatdiag.diagnosis.wording import MINUS, TIMES, describe_range, number, percent, plain

DIGITS = str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789")


def back(text):
    """A number as it was before it was put into words."""
    text = text.replace(MINUS, "-").replace(",", "")
    if TIMES in text:
        mantissa, power = text.split(TIMES)
        return float(mantissa) * 10.0 ** float(power.strip().removeprefix("10").translate(DIGITS))
    return float(text)


@given(st.floats(allow_nan=False, allow_infinity=False, min_value=-1e200, max_value=1e200))
def test_a_number_says_what_it_is_to_three_digits_and_is_short(value):
    assert back(number(value)) == pytest.approx(value, rel=6e-3, abs=1e-300)
    assert len(number(value)) <= 16


def test_what_is_no_number_is_said():
    texts = [number(value) for value in (math.nan, math.inf, -math.inf, None)]
    assert texts == ["NaN", "∞", f"{MINUS}∞", "not measured"]


def test_a_part_is_never_called_all_or_nothing():
    assert not {percent(fraction) for fraction in (1e-9, 5e-4, 0.9994, 1 - 1e-12)} & {"0%", "100%"}
    assert [percent(value) for value in (0, 1, 0.5, -0.25, math.nan)] == ["0%", "100%", "50%", f"{MINUS}25%", "NaN"]


def test_a_range_is_written_as_numbers_are():
    assert plain(describe_range(1e-5, 3.0)) == f"1 {TIMES} 10⁻⁵ to 3"
