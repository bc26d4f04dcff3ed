"""bitsandbytes' kernels, or a sentence that says what is missing."""

import logging

# Its kernels for inference on CPUs are a package of their own; nothing here needs them.
logging.getLogger("bitsandbytes").setLevel(logging.ERROR)

try:
    from bitsandbytes import functional as kernels
except ImportError as error:
    raise ImportError(
        "adapter.base nf4 and int8 and optimizer adamw_8bit need the package bitsandbytes on every "
        "node (it comes with the platform's extra `train`); or take base none and adamw"
    ) from error

__all__ = ["kernels"]
