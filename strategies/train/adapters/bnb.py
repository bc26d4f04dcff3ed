"""Kernels of bitsandbytes; importing this without the package raises with the missing name."""

import logging

# bitsandbytes warns that its CPU inference kernels, a separate package, are missing; nothing here
# needs them.
logging.getLogger("bitsandbytes").setLevel(logging.ERROR)

try:
    from bitsandbytes import functional as kernels
except ImportError as error:
    raise ImportError(
        "adapter.base nf4 and int8 and optimizer adamw_8bit need the package bitsandbytes on every "
        "node (it comes with the platform's extra `train`); or take base none and adamw"
    ) from error

__all__ = ["kernels"]
