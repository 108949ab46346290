"""Names from outside: nothing in them is obeyed, they stay on their line, and they are short."""

from hypothesis import given
from hypothesis import strategies as st

from gatdiag.names import elide_middle, join_names, one_line, printable, quote, short


@given(st.text())
def test_a_terminal_has_nothing_to_obey(text):
    assert printable(text).isprintable()
    assert printable(printable(text)) == printable(text)


def test_what_can_be_printed_stays():
    assert printable("convs.0 größer ‖W‖") == "convs.0 größer ‖W‖"


@given(st.text())
def test_a_quoted_name_is_one_line_of_ascii(text):
    assert quote(text).isprintable()
    assert quote(text).isascii()
    assert len(quote(text)) < 900


@given(st.text(max_size=400))
def test_a_name_stays_on_its_line_and_is_short(name):
    for text in (one_line(name), short(name)):
        assert text
        assert not {"\n", "\r", "\x00", "\x1b", "\u202e", "\u2028", "\u2066"} & {*text}
    assert len(short(name)) <= 50


@given(st.text(max_size=99), st.integers(3, 50))
def test_a_shortened_name_keeps_both_ends(name, longest):
    text = elide_middle(name, longest)
    assert text == name or len(text) == longest
    assert (text[:1], text[-1:]) == (name[:1], name[-1:])


def test_a_name_written_rightward_does_not_turn_the_sentence():
    assert short("\u05d0\u05d1\u05d2") == "\u2068\u05d0\u05d1\u05d2\u2069"
    assert short("convs.0") == "convs.0"


def test_of_many_names_the_first_are_listed_and_the_others_counted():
    assert join_names([]) == ""
    assert join_names(["a"]) == "a"
    assert join_names(map(str, range(100)), most=3) == "0, 1, 2 and 97 more"
