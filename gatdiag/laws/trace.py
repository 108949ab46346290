"""One forward pass as a sequence of aten operations, each handed to its rule."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from fractions import Fraction
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import _pop_mode, _push_mode
from torch.utils.weak import TensorWeakRef, WeakTensorKeyDictionary

from gatdiag.errors import ModelError
from gatdiag.laws.exponents import Exponents
from gatdiag.laws.flow import Flow, has_scale
from gatdiag.laws.label import ZEROS, Label
from gatdiag.laws.rules import RULES, Call, Labels, Rule, arrangement, elementwise, matrix, reduction
from gatdiag.structure.deadline import check_time
from gatdiag.structure.isolation import DispatchMode
from gatdiag.structure.modules import named_modules

OUTPUT: Final = "the output"

_CREATES_ZEROS = (arrangement.new_zeros, arrangement.full, arrangement.lift)
_ALLOWS_MIXTURES = (elementwise.homogeneous, elementwise.power, RULES["square"], RULES["sqrt"], reduction.sum_or_norm)
# These read no unknowns one by one.
_LEAVES_RESERVED = (
    elementwise.homogeneous, elementwise.cast, arrangement.embedding, matrix.matmul, matrix.addmm, matrix.linear,
    matrix.convolution,
)  # fmt: skip
_VIEWS = (arrangement.rearrange, arrangement.reshape)
_PLAIN_DISPATCH = torch._C._disabled_torch_dispatch_impl


class Trace(DispatchMode):
    """Propagates labels through every operation that runs while the mode is on, and adds equations to `exponents`.

    A number that is read from a labeled tensor (`item`) may decide anything, so the tensor must keep its scale.

    An index is constant if it is made of numbers in the code (`arange`, a list) and of the model's own tensors; every
    other one is data, and may be another in the next batch.

    Args:
        exponents: Where the equations are added.
        current_module: Returns the path of the module that is running.
        constants: Tensors that every batch finds as they are, such as the model's buffers.

    Attributes:
        unknown: (operation without a rule, module it ran in) -> number of calls.
        failed: (operation called in a form that its rule does not support, module it ran in) -> error.
        flow: What the operations read and wrote.
    """

    def __init__(
        self, exponents: Exponents, current_module: Callable[[], str], constants: Iterable[Tensor] = ()
    ) -> None:
        super().__init__()
        self._exponents = exponents
        self._current_module = current_module
        self._labels = WeakTensorKeyDictionary()
        self._zero_tests = WeakTensorKeyDictionary()
        self._views: dict[int, list[TensorWeakRef]] = {}  # storage -> tensors in it
        self._constants = WeakTensorKeyDictionary()  # those that may be indices
        # storages (a weak reference keeps the address from being used again) that data were written to, and of indices
        # that an offset was added to
        self._data: dict[int, StorageWeakRef] = {}
        self._shifted: dict[int, StorageWeakRef] = {}
        for tensor in constants:
            if not has_scale(tensor):
                self._constants[tensor] = True
        self.unknown: Counter[tuple[str, str]] = Counter()
        self.failed: dict[tuple[str, str], str] = {}
        self.flow = Flow()

    def label_parameter(self, parameter: Tensor, name: str) -> Label:
        """Give a parameter unknown exponents, entry by entry."""
        label = Label(((Fraction(1), self._exponents.reserve_entries(parameter.shape, name)),))
        self.set_label(parameter, label if parameter.numel() else ZEROS)
        return label

    def label_of(self, tensor: Tensor) -> Label:
        """The label of a tensor; one without terms if it does not depend on a parameter's scale."""
        label: Label = self._labels.get(tensor, Label())
        if any(ids.is_meta for ids in label.arrays):
            label = self._labels[tensor] = self._exponents.open(label)
        return label

    def is_constant(self, tensor: Tensor) -> bool:
        """True if an integer or boolean tensor is the same for every batch."""
        is_known = tensor in self._constants and tensor.layout == torch.strided
        return is_known and tensor.untyped_storage()._cdata not in self._data

    def is_shifted(self, tensor: Tensor) -> bool:
        """True if the model added an offset to an index, so that it points into a part of a tensor."""
        return tensor.layout == torch.strided and tensor.untyped_storage()._cdata in self._shifted

    def _label_with_reserved(self, label_of: Callable[[Tensor], Label], tensor: Tensor) -> Label:
        """The label in which reserved unknowns remain so, or else as usual."""
        label: Label = self._labels.get(tensor, Label())
        return label if any(ids.is_meta for ids in label.arrays) else label_of(tensor)

    def _resolved_label_of(self, tensor: Tensor) -> Label:
        label = self.label_of(tensor)
        if label.terms:
            label = self._labels[tensor] = self._exponents.resolve_mixtures(label, only_large=True)
        return label

    def set_label(self, tensor: Tensor, label: Label) -> None:
        """Set the label of a tensor; integers and booleans have none."""
        if not has_scale(tensor) or not label.arrays:
            self._labels.pop(tensor, None)
        else:
            label = label.with_ndim(tensor.ndim)
            self._labels[tensor] = Label((), label.zeros) if label.is_all_zeros else label

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run the operation, then apply its rule."""
        kwargs, shape = kwargs or {}, None
        with self._contained("in", func):
            if any(getattr(kind, "__torch_dispatch__", _PLAIN_DISPATCH) is not _PLAIN_DISPATCH for kind in types):
                return NotImplemented
            shape = _first_shape(args)
        out = func(*args, **kwargs)
        with self._contained("in", func), unobserved():
            self._follow(func, _bind_arguments(func, args, kwargs), out, shape)
        return out

    def _contained(self, *where: object) -> AbstractContextManager[None]:
        """A context for all but the operation itself; errors propagate, as the trace of a copy has nobody to spare."""
        return nullcontext()

    def _follow(self, func: Any, arguments: dict[str, Any], out: Any, shape: torch.Size | None) -> None:
        """Label the results of an operation that has just run."""
        check_time()
        if shape is None:
            raise ModelError("tensors without a shape (nested ones) cannot be followed")
        tests = (self._zero_tests, self.is_constant, self.is_shifted)
        call = Call(func, arguments, out, shape, self._exponents, self.label_of, *tests)
        self._find_constants(call)
        rule = self._find_rule(call)
        demands = self._exponents.demands
        if rule is not None:
            if rule not in _ALLOWS_MIXTURES:
                call = replace(call, label_of=self._resolved_label_of)
            self._assign_labels(call, self._apply_rule(rule, call))
        self.flow.record(call, None if self._exponents.demands == demands else self._exponents.cause)
        if func.is_view:
            self._register_views(call)

    def _find_constants(self, call: Call) -> None:
        indices = [result for result in call.results if isinstance(result, Tensor) and not has_scale(result)]
        if not indices:
            return
        is_written_down = call.name in ("lift", "lift_fresh", "lift_fresh_copy")  # numbers in the code become a tensor
        is_random = torch.Tag.nondeterministic_seeded in call.function.tags
        is_constant = is_written_down or not (is_random or not all(map(self.is_constant, call.tensors())))
        is_shifted = call.name.rstrip("_") in ("add", "sub") or any(map(self.is_shifted, call.tensors()))
        for tensor in indices:
            if is_shifted and tensor.layout == torch.strided:
                self._shifted[tensor.untyped_storage()._cdata] = StorageWeakRef(tensor.untyped_storage())
            if is_constant:
                self._constants[tensor] = True
            elif call.function._schema.is_mutable and tensor.layout == torch.strided:
                self._data[tensor.untyped_storage()._cdata] = StorageWeakRef(tensor.untyped_storage())

    def _apply_rule(self, rule: Rule, call: Call) -> Labels:
        """Apply a rule; if it fails, the arguments must keep their scale."""
        name, module = call.name, self._current_module()
        self._exponents.cause = f"{'item' if name == '_local_scalar_dense' else name} in {module}"
        try:
            if rule in _LEAVES_RESERVED or (rule in _VIEWS and call.function.is_view):
                labels = rule(replace(call, label_of=partial(self._label_with_reserved, call.label_of)))
                if all(map(self._exponents.knows_reserved, _as_list(labels))):
                    return labels
            labels = rule(call)
            if any(0 in label.shape for label in _as_list(labels) if label.terms):
                raise ValueError("it ran on an empty tensor")
            return labels
        except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
            self.failed[name, module] = f"{type(error).__name__}: {error}"
            return call.fix_scale()

    def _find_rule(self, call: Call) -> Rule | None:
        is_mutable = call.function._schema.is_mutable
        rule = RULES.get(call.name) or (RULES.get(call.name.removesuffix("_")) if is_mutable else None)
        if not any(tensor in self._labels for tensor in call.tensors()):
            return rule if rule in _CREATES_ZEROS else None
        if rule is None:
            self.unknown[call.name, self._current_module()] += 1
        return rule or elementwise.inhomogeneous

    def _assign_labels(self, call: Call, labels: Labels) -> None:
        for tensor, label in zip(call.results, _as_list(labels), strict=False):
            if isinstance(tensor, Tensor):
                is_mutated = any(tensor is argument for argument in call.tensors())
                before = self.label_of(tensor) if is_mutated else Label()
                self.set_label(tensor, label)
                if is_mutated and not _is_same(before, self.label_of(tensor)):
                    self._relabel_views(tensor)

    def _register_views(self, call: Call) -> None:
        for tensor in [*call.tensors(), *call.results]:
            if isinstance(tensor, Tensor) and tensor.layout == torch.strided and has_scale(tensor):
                known = self._views.setdefault(tensor.untyped_storage()._cdata, [])
                known[:] = [reference for reference in known if reference() is not None]
                if all(reference() is not tensor for reference in known):
                    known.append(TensorWeakRef(tensor))

    def _relabel_views(self, changed: Tensor) -> None:
        """Update the label of every view of the memory of a tensor that was written in place."""
        if changed.layout != torch.strided:
            return
        storage = changed.untyped_storage()
        for reference in self._views.get(storage._cdata, []):
            view = reference()
            if view is None or view is changed:
                continue
            self.set_label(view, self._merge_into_view(view, changed))

    def _merge_into_view(self, view: Tensor, changed: Tensor) -> Label:
        """The label of a view after another tensor in the same memory got a new one."""
        old, new = self.label_of(view), self.label_of(changed)
        if view.is_complex() != changed.is_complex():
            self._exponents.require_zero(old)
            self._exponents.require_zero(new)
            return Label()
        target, source = _memory_positions(view), _memory_positions(changed)
        if not target.numel() or not source.numel():
            return old
        size = int(max(target.max(), source.max())) + 1
        ids, zeros = torch.zeros(size, dtype=torch.int64), torch.zeros(size, dtype=torch.bool)
        for label, positions in ((old, target), (new, source)):
            ids[positions], zeros[positions] = self._exponents.to_entries(label, positions.shape)
        return Label.from_entries(ids[target], zeros[target])


class Running:
    """The path of the module that is running, kept by its hooks."""

    def __init__(self, model: nn.Module) -> None:
        self.paths: dict[int, list[str]] = defaultdict(list)  # id of a module -> several for a shared one
        for path, module in named_modules(model, remove_duplicate=False):
            self.paths[id(module)].append(path)
        self._stack: list[str] = []

    def enter(self, module: nn.Module) -> None:
        """A module is called."""
        inside = self._stack[-1] if self._stack else ""
        known = self.paths.get(id(module), [inside])
        self._stack.append(next((path for path in known if path.startswith(f"{inside}.")), known[0]))

    def leave(self) -> None:
        """The module that was called last returns."""
        self._stack.pop()

    def __len__(self) -> int:
        """How many calls have not returned."""
        return len(self._stack)

    def __call__(self) -> str:
        """The path of the module that is running."""
        return (self._stack[-1] if self._stack else "") or "the model"


@contextmanager
def unobserved() -> Iterator[None]:
    """A context in which modes of the user's (counters of operations, default devices) see no operation."""
    with torch._C.DisableTorchFunction():
        modes = []
        try:
            while torch._C._len_torch_dispatch_stack():
                modes.append(_pop_mode())
            yield
        finally:
            for mode in reversed(modes):
                _push_mode(mode)


def _as_list(labels: Labels) -> Sequence[Label]:
    return [labels] if isinstance(labels, Label) else labels


def _memory_positions(tensor: Tensor) -> Tensor:
    """Positions of the entries in memory."""
    count = tensor.untyped_storage().nbytes() // tensor.element_size()
    return torch.arange(count).as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())


def _first_shape(args: tuple[Any, ...]) -> torch.Size | None:
    """The shape of the first argument, before an operation changes it; None if it is a tensor that has none."""
    if not args or not isinstance(args[0], Tensor):
        return torch.Size()
    return None if args[0].is_nested else args[0].shape


def _bind_arguments(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments by the names in the operation's schema, defaults filled in."""
    named = {}
    for position, argument in enumerate(func._schema.arguments):
        if position < len(args):
            named[argument.name] = args[position]
        elif argument.name in kwargs or argument.has_default_value():
            named[argument.name] = kwargs.get(argument.name, argument.default_value)
    return named


def _is_same(left: Label, right: Label) -> bool:
    """True if two labels have the same terms; others may be equal in value, too."""
    has_same_form = left.coefficients == right.coefficients and (left.zeros is None) == (right.zeros is None)
    return has_same_form and all(map(torch.equal, left.arrays, right.arrays))
