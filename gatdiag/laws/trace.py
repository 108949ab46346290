"""One forward pass seen as aten operations, each handed to its rule."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import TensorWeakRef, WeakTensorKeyDictionary

from gatdiag.laws.exponents import Exponents
from gatdiag.laws.label import Label, written
from gatdiag.laws.rules import RULES, Call, Labels, Rule, arrangement, elementwise, reduction
from gatdiag.structure.deadline import check_time

_MAKES_ZEROS = (arrangement.made_of_zeros, arrangement.constant, arrangement.literal)
_KEEPS_SPREAD = (elementwise.same, elementwise.power, RULES["square"], RULES["sqrt"], reduction.summed)
_PLAIN_DISPATCH = torch._C._disabled_torch_dispatch_impl


class Trace(TorchDispatchMode):
    """Follows labels through every operation that runs while the mode is on, and adds equations to `exponents`.

    A number that is read out of a labeled tensor (`item`) may decide anything, so the tensor keeps its scale.
    """

    def __init__(self, exponents: Exponents, running: Callable[[], str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._exponents = exponents
        self._running = running
        self._labels = WeakTensorKeyDictionary()
        self._zero_tests = WeakTensorKeyDictionary()
        self._views: dict[int, list[TensorWeakRef]] = {}
        self.unknown: Counter[tuple[str, str]] = Counter()  # operations without a rule, and the module they ran in
        self.failed: dict[tuple[str, str], str] = {}  # operations in a form that their rule cannot read, and why

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # nothing is compiled while tracing, and guarding against it imports torch._dynamo, which takes seconds
        return False

    def label_of(self, tensor: Tensor) -> Label:
        """The label of a tensor; no terms where no parameter has scaled it."""
        label: Label = self._labels.get(tensor, Label())
        return label

    def _settled_label_of(self, tensor: Tensor) -> Label:
        label = self.label_of(tensor)
        if label.terms:
            label = self._labels[tensor] = self._exponents.settled(label, only_spread=True)
        return label

    def set_label(self, tensor: Tensor, label: Label) -> None:
        """Give a tensor its label. Integers and booleans have none."""
        if not _has_scale(tensor) or not label.arrays:
            self._labels.pop(tensor, None)
        else:
            label = label.aligned(tensor.ndim)
            self._labels[tensor] = Label((), label.zeros) if label.is_zero else label

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run the operation, then apply its rule."""
        if any(getattr(kind, "__torch_dispatch__", _PLAIN_DISPATCH) is not _PLAIN_DISPATCH for kind in types):
            return NotImplemented
        check_time()
        kwargs = kwargs or {}
        shape = args[0].shape if args and isinstance(args[0], Tensor) else torch.Size()
        out = func(*args, **kwargs)
        call = Call(func, _bound(func, args, kwargs), out, shape, self._exponents, self.label_of, self._zero_tests)
        rule = self._rule(call)
        if rule is not None:
            if rule not in _KEEPS_SPREAD:
                call = replace(call, label_of=self._settled_label_of)
            self._assign(call, self._labels_by(rule, call))
        if func.is_view:
            self._remember(call)
        return out

    def _labels_by(self, rule: Rule, call: Call) -> Labels:
        """Labels by a rule; where it cannot read the call, what it touches is held."""
        name, where = call.name, self._running()
        self._exponents.cause = f"{'item' if name == '_local_scalar_dense' else name} in {where}"
        try:
            return rule(call)
        except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
            self.failed[name, where] = f"{type(error).__name__}: {error}"
            return call.vanish()

    def _rule(self, call: Call) -> Rule | None:
        is_mutable = call.function._schema.is_mutable
        rule = RULES.get(call.name) or (RULES.get(call.name.removesuffix("_")) if is_mutable else None)
        if not any(self.label_of(tensor).arrays for tensor in call.tensors()):
            return rule if rule in _MAKES_ZEROS else None
        if rule is None:
            self.unknown[call.name, self._running()] += 1
        return rule or elementwise.fixed

    def _assign(self, call: Call, labels: Labels) -> None:
        for tensor, label in zip(call.results, [labels] if isinstance(labels, Label) else labels, strict=False):
            if isinstance(tensor, Tensor):
                mutated = any(tensor is argument for argument in call.tensors())
                before = self.label_of(tensor)
                self.set_label(tensor, label)
                if mutated and not _same(before, self.label_of(tensor)):
                    self._spread(tensor)

    def _remember(self, call: Call) -> None:
        for tensor in [*call.tensors(), *call.results]:
            if isinstance(tensor, Tensor) and tensor.layout == torch.strided and _has_scale(tensor):
                known = self._views.setdefault(tensor.untyped_storage()._cdata, [])
                known[:] = [reference for reference in known if reference() is not None]
                if all(reference() is not tensor for reference in known):
                    known.append(TensorWeakRef(tensor))

    def _spread(self, changed: Tensor) -> None:
        """A tensor was written in place with a new label: give it to every view of the same memory."""
        if changed.layout != torch.strided:
            return
        storage = changed.untyped_storage()
        for reference in self._views.get(storage._cdata, []):
            view = reference()
            if view is None or view is changed:
                continue
            self.set_label(view, self._overlaid(view, changed))

    def _overlaid(self, view: Tensor, changed: Tensor) -> Label:
        """The label of a view after another tensor in the same memory was relabeled."""
        under, over = self.label_of(view), self.label_of(changed)
        target, source = _places(view), _places(changed)
        if not target.numel() or not source.numel():
            return under
        size = int(max(target.max(), source.max())) + 1
        memory, empty = torch.zeros(size, dtype=torch.int64), torch.zeros(size, dtype=torch.bool)
        for label, tensor, place in ((under, view, target), (over, changed, source)):
            label = label.map(lambda array: array.unsqueeze(-1)) if tensor.is_complex() else label
            memory[place], empty[place] = self._exponents.written_out(label, place.shape)
        label = written(memory[target], empty[target])
        if not view.is_complex():
            return label
        return self._exponents.uniform(label, [view.ndim]).map(lambda array: array.squeeze(-1))


def _has_scale(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _places(tensor: Tensor) -> Tensor:
    """Places of the entries in memory; of a complex one, two along a last axis."""
    size, stride, offset, width = tensor.size(), tensor.stride(), tensor.storage_offset(), tensor.element_size()
    if not tensor.is_complex():
        return torch.arange(tensor.untyped_storage().nbytes() // width).as_strided(size, stride, offset)
    memory = torch.arange(tensor.untyped_storage().nbytes() * 2 // width)
    return memory.as_strided((*size, 2), (*(2 * step for step in stride), 1), 2 * offset)


def _bound(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments by the names of the operation's schema, defaults filled in."""
    named = {}
    for position, argument in enumerate(func._schema.arguments):
        if position < len(args):
            named[argument.name] = args[position]
        elif argument.name in kwargs or argument.has_default_value():
            named[argument.name] = kwargs.get(argument.name, argument.default_value)
    return named


def _same(left: Label, right: Label) -> bool:
    """True if two labels are written alike (not: if they are equal in value)."""
    coefficients = [[coefficient for coefficient, _ in label.terms] for label in (left, right)]
    is_alike = coefficients[0] == coefficients[1] and (left.zeros is None) == (right.zeros is None)
    return is_alike and all(map(torch.equal, left.arrays, right.arrays))
