"""Function files of MLX's: read, written for a device of choice, and checked before MLX sees them.

MLX trusts what it imports: an axis beyond its array, a wrong type or a list of sizes that does not fit ends
the process or reads memory of others. `replay` follows a file's tape for the arguments of a call.
"""

from edgekit.runtime.engines.mlx.functions.file import ExportedFunction, encode, parse, version
from edgekit.runtime.engines.mlx.functions.replay import replay
from edgekit.runtime.engines.mlx.functions.rules import Array

__all__ = ["Array", "ExportedFunction", "encode", "parse", "replay", "version"]
