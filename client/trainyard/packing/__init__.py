"""Pack a folder of code for upload, without what is private or ignored."""

from trainyard.packing.archive import PackedCode, pack, pack_files

__all__ = ["PackedCode", "pack", "pack_files"]
