"""A tape on disk: one safetensors file without any code in it.

One file, not a folder: it is attached to an issue, mailed and checked as a whole. The tape itself
is a JSON text; it is one of the tensors (``document``), because the header of a safetensors file
is limited in size and would hold the text escaped a second time. Leaves, snapshots and generator
states are raw bytes (``U8``) under names that the document gives them; the header's metadata says
version and a SHA-256 over the names, sizes and bytes of all tensors.

Nothing in a file is a path, a class or a function, except the names of ATen ops, which are held
against torch's registry (``op_names``).
"""

from fp16doctor.record.bundle.files import read_bundle, write_bundle

__all__ = ["read_bundle", "write_bundle"]
