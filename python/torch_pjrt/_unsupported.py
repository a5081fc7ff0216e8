"""What the device does not have, refused in words of ours where PyTorch's would not say what to do."""

from __future__ import annotations

from multiprocessing.reduction import ForkingPickler
from typing import Any, NoReturn

import torch
from torch.multiprocessing.reductions import reduce_storage


def quantized(op: Any, *_: Any, **__: Any) -> NoReturn:
    raise NotImplementedError(
        f"tpu: {op.name()}: quantized dtypes are not supported on this device; dequantize() on the CPU, "
        "or keep integers and scales in tensors of their own"
    )


def reduce_unless_on_device(storage: torch.UntypedStorage) -> Any:
    """What a queue between processes makes of a storage: memory of this device belongs to one process."""
    if storage.device.type == "tpu":
        raise NotImplementedError(
            "tpu: tensors cannot be sent to another process, PJRT has no memory shared between processes; "
            "send tensor.cpu()"
        )
    return reduce_storage(storage)


def register() -> torch.library.Library:
    """For as long as the library lives; the reduction for good."""
    ForkingPickler.register(torch.UntypedStorage, reduce_unless_on_device)
    library = torch.library.Library("_", "IMPL")
    library.fallback(quantized, "QuantizedPrivateUse1")
    return library
