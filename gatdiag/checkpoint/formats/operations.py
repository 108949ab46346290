"""The instructions of pickles: those of torch's weights-only loader, and those of protocol 4 for plain data."""

import struct
from collections.abc import Callable
from typing import Any

from gatdiag.checkpoint.formats.machine import Global, Machine
from gatdiag.errors import InputError

_U1, _U2, _U4, _U8, _I4 = (struct.Struct(form) for form in ("<B", "<H", "<I", "<Q", "<i"))
_FLOAT = struct.Struct(">d")


def _protocol(m: Machine) -> None:
    protocol = m.number(_U1)
    if protocol not in m.rules.protocols:
        raise InputError(
            f"it is written in pickle protocol {protocol}, and torch's weights-only loader reads protocol 2: "
            "save it with torch.save and no pickle_protocol"
        )


def _stop(m: Machine) -> None:
    m.ended = True


def _number(form: struct.Struct) -> Callable[[Machine], None]:
    return lambda m: m.stack.append(m.number(form))


def _constant(value: Any) -> Callable[[Machine], None]:
    return lambda m: m.stack.append(value)


def _new(kind: Callable[[], Any]) -> Callable[[Machine], None]:
    return lambda m: m.stack.append(kind())


def _text(form: struct.Struct, errors: str = "surrogatepass") -> Callable[[Machine], None]:
    return lambda m: m.stack.append(str(m.take(m.number(form)), "utf-8", errors))


def _bytes(form: struct.Struct) -> Callable[[Machine], None]:
    return lambda m: m.stack.append(bytes(m.take(m.number(form))))


def _long(m: Machine) -> None:
    m.stack.append(int.from_bytes(m.take(m.number(_U1)), "little", signed=True))


def _global(m: Machine) -> None:
    m.push_global(m.line(), m.line())


def _stack_global(m: Machine) -> None:
    name, module = m.stack.pop(), m.stack.pop()
    if type(name) is not str or type(module) is not str:
        raise InputError("it names something to import by what is no text")
    m.push_global(module, name)


def _mark(m: Machine) -> None:
    m.marks.append(len(m.stack))


def _tuple(m: Machine) -> None:
    m.stack.append(tuple(m.since_mark()))


def _tuple_of(count: int) -> Callable[[Machine], None]:
    def operation(m: Machine) -> None:
        items = tuple(m.stack[-count:])
        del m.stack[-count:]
        m.stack.append(items)

    return operation


def _put(m: Machine) -> None:
    m.memo[m.byte()] = m.stack[-1]


def _put_far(m: Machine) -> None:
    m.memo[m.number(_U4)] = m.stack[-1]


def _memoize(m: Machine) -> None:
    m.memo[len(m.memo)] = m.stack[-1]


def _append(m: Machine) -> None:
    item = m.stack.pop()
    _list(m).append(item)


def _appends(m: Machine) -> None:
    items = m.since_mark()
    _list(m).extend(items)


def _list(m: Machine) -> list[Any]:
    target = m.stack[-1]
    if type(target) is not list:
        raise InputError(f"it appends to what is no list but {type(target).__name__}")
    return target


def _set_item(m: Machine) -> None:
    value, key = m.stack.pop(), m.stack.pop()
    _set(m, [key, value])


def _set_items(m: Machine) -> None:
    _set(m, m.since_mark())


def _set(m: Machine, items: list[Any]) -> None:
    target = m.stack[-1]
    if not isinstance(target, dict):
        raise InputError(f"it sets items of what is no dictionary but {type(target).__name__}")
    check = m.rules.key
    for key, value in zip(items[::2], items[1::2], strict=True):
        target[key if type(key) is str else check(key)] = value


def _call(m: Machine) -> None:
    arguments, function = m.stack.pop(), m.stack.pop()
    if type(function) is not Global or type(arguments) is not tuple:
        raise InputError("it calls what is no function")
    m.stack.append(m.rules.call(function.name, arguments))


def _build(m: Machine) -> None:
    state = m.stack.pop()
    m.rules.build(m.stack[-1], state)


def _persistent(m: Machine) -> None:
    m.stack.append(m.rules.persistent(m.stack.pop()))


OPERATIONS: dict[int, Callable[[Machine], None]] = {
    ord(code): operation
    for code, operation in {
        "\x80": _protocol,
        ".": _stop,
        "\x95": lambda m: m.take(8),
        "N": _constant(None),
        "\x88": _constant(True),
        "\x89": _constant(False),
        "K": lambda m: m.stack.append(m.byte()),
        "M": _number(_U2),
        "J": _number(_I4),
        "G": _number(_FLOAT),
        "\x8a": _long,
        "X": _text(_U4),
        "\x8c": _text(_U1),
        "U": _text(_U1, "strict"),
        "C": _bytes(_U1),
        "B": _bytes(_U4),
        ")": _constant(()),
        "]": _new(list),
        "}": _new(dict),
        "(": _mark,
        "t": _tuple,
        "\x85": _tuple_of(1),
        "\x86": _tuple_of(2),
        "\x87": _tuple_of(3),
        "h": lambda m: m.stack.append(m.memo[m.byte()]),
        "j": lambda m: m.stack.append(m.memo[m.number(_U4)]),
        "q": _put,
        "r": _put_far,
        "\x94": _memoize,
        "a": _append,
        "e": _appends,
        "s": _set_item,
        "u": _set_items,
        "c": _global,
        "\x93": _stack_global,
        "R": _call,
        "\x81": _call,
        "b": _build,
        "Q": _persistent,
    }.items()
}
