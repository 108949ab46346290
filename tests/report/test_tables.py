import math

import numpy as np
import pandas as pd
import pytest

from gatdiag.report.tables import Cell, pairs, value, whole, words


@pytest.mark.parametrize("number", [0.0, -3.25e-9, 12345.678, 1, np.float64(2.5)])
def test_a_cell_sorts_by_the_number_it_shows(number):
    cell = value(number)
    assert float(cell.value) == pytest.approx(float(number), rel=1e-5)
    assert float(cell.text) == pytest.approx(float(number), rel=1e-2)


def test_what_was_not_measured_is_empty_and_what_is_no_number_is_said():
    assert value(None) == value(pd.NA) == Cell("")
    assert value(math.nan) == Cell("NaN", "nan")
    assert value(-math.inf).value == "-Infinity"


def test_words_are_one_line_and_whole_numbers_whole():
    assert words("a\nb") == Cell("a b")
    assert words("") == Cell("")
    assert whole(1234567) == Cell("1234567", "1234567")


def test_pairs_are_rows_of_two():
    table = pairs("Versions", "v", ("", ""), {"python": "3.11", "torch": None})
    assert [[cell.text for cell in row] for row in table.rows] == [["python", "3.11"], ["torch", "None"]]
    assert not table.sortable
