"""Opens a saved checkpoint of any format, without running anything that hides in it."""

import os
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from gatdiag.checkpoint.checkpoint import Checkpoint
from gatdiag.checkpoint.formats import read_contents, reading
from gatdiag.checkpoint.optimizer import optimizer_state
from gatdiag.checkpoint.progress import epoch_of, step_of
from gatdiag.checkpoint.state_dict import find_weights
from gatdiag.errors import InputError
from gatdiag.names import quoted

_REPEATED: Final = 1 << 20  # bytes up to which a tensor may repeat what its storage holds
_LONGEST_EMPTY: Final = 1 << 24  # an axis beside one of length 0 costs the file nothing, and its reader a number each


def open_checkpoint(path: str | os.PathLike[str]) -> Checkpoint:
    """Opens a saved checkpoint.

    Reads files of torch.save (Lightning's too), old and new, safetensors in one file or several, and folders of
    torch.distributed.checkpoint. What a pickle asks for is read before anything is loaded; a file that asks for more
    than tensors and plain values is refused, and so is one that claims more than it holds.

    Args:
        path: The file; or the folder, or the index, of a checkpoint in several files.

    Returns:
        The checkpoint. Tensors stay on disk until they are used where the format allows it.

    Raises:
        InputError: It cannot be read, is damaged, needs more than weights-only loading, or holds no model.

    Example:
        >>> import tempfile, torch
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder, "gat.pt")
        ...     torch.save({"model": {"module.lin.weight": torch.eye(2)}, "epoch": 3}, path)
        ...     checkpoint = open_checkpoint(path)
        ...     list(checkpoint.tensors), checkpoint.within, checkpoint.epoch
        (['lin.weight'], ('model',), 3)
    """
    path = Path(path)
    contents = read_contents(path)
    with reading(path):
        weights = find_weights(contents.data)
        # Of the class: a file can give a tensor an attribute of that name.
        tensors = {name: Tensor.detach(tensor) for name, tensor in weights.tensors.items()}
        optimizer, notes = optimizer_state(contents.data, tensors)
        moments = {} if optimizer is None else optimizer.moments
        for name, tensor in [*tensors.items(), *((name, t) for state in moments.values() for name, t in state.items())]:
            _check_readable(name, tensor)
        return Checkpoint(
            path=path,
            format=contents.format,
            tensors=tensors,
            keys=weights.keys,
            within=weights.within,
            step=step_of(contents.data, optimizer, path),
            epoch=epoch_of(contents.data, path),
            optimizer=optimizer,
            notes=(*contents.notes, *weights.notes, *notes),
        )


def _check_readable(name: str, tensor: Tensor) -> None:
    """Raises where a tensor that was loaded cannot be worked with."""
    if not tensor.numel() and max(tensor.shape, default=0) > _LONGEST_EMPTY:
        raise InputError(f"{quoted(name)} holds no numbers, and claims the shape {list(tensor.shape)}")
    if tensor.layout == torch.strided and not tensor.is_meta:
        size, held = tensor.numel() * tensor.itemsize, tensor.untyped_storage().nbytes()
        if size > max(held, _REPEATED):
            raise InputError(f"{quoted(name)} repeats its {held:,} bytes up to {size:,}: save a copy of it")
    if tensor.is_quantized:
        tensor.dequantize()  # fails on zero points that are out of range
    elif tensor.dtype.itemsize == 1 and not tensor.is_meta:
        try:
            tensor.flatten()[:1].double()
        except RuntimeError as error:  # such as two numbers of four bits in a byte
            kind = str(tensor.dtype).removeprefix("torch.")
            raise InputError(f"{quoted(name)} is of the type {kind}, which torch cannot convert on the CPU") from error
