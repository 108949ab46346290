import json
import math

from gatdiag.cli.printing import print_json


def test_numbers_that_are_not_finite_are_null(capsys):
    print_json({"a": [math.nan, (math.inf, 1.5)], "b": {"c": -math.inf}, "d": True, "e": None})
    assert json.loads(capsys.readouterr().out) == {"a": [None, [None, 1.5]], "b": {"c": None}, "d": True, "e": None}
