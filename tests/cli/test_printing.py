import json
import math

from hypothesis import given
from hypothesis import strategies as st

from gatdiag.cli.printing import print_document, printable


def test_numbers_that_are_not_finite_are_null(capsys):
    print_document({"a": [math.nan, (math.inf, 1.5)], "b": {"c": -math.inf}, "d": True, "e": None})
    assert json.loads(capsys.readouterr().out) == {"a": [None, [None, 1.5]], "b": {"c": None}, "d": True, "e": None}


@given(st.text())
def test_a_terminal_has_nothing_to_obey(text):
    assert printable(text).isprintable()
    assert printable(printable(text)) == printable(text)


def test_what_can_be_printed_stays():
    assert printable("convs.0 größer ‖W‖") == "convs.0 größer ‖W‖"
