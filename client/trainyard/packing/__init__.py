"""Pack a folder of code for upload, without what is private or ignored."""

from trainyard.packing.archive import Packed, pack, pack_files

__all__ = ["Packed", "pack", "pack_files"]
