"""Checks the imports of the edgekit that lies in the working directory.

    python import_contracts.py PYPROJECT

Section `tool.importlinter` of PYPROJECT says what must hold. Beyond it, no module may reach itself by
imports: the contract on siblings does not look at a package's own file.
"""

from __future__ import annotations

import sys
from graphlib import CycleError, TopologicalSorter
from importlib.machinery import BuiltinImporter, FrozenImporter, PathFinder

import grimp
from importlinter.cli import EXIT_STATUS_SUCCESS, lint_imports


def circle() -> list[str] | None:
    """Modules that import each other in a circle, each named before the one that it imports."""
    graph = grimp.build_graph("edgekit", cache_dir=None)
    try:
        TopologicalSorter({m: graph.find_modules_directly_imported_by(m) for m in graph.modules}).prepare()
    except CycleError as error:
        return list(reversed(error.args[1]))
    return None


def main(pyproject: str) -> int:
    # The finders of editable installs lead to the other edgekit.
    sys.meta_path[:] = [BuiltinImporter, FrozenImporter, PathFinder]
    kept = lint_imports(config_filename=pyproject, no_cache=True) == EXIT_STATUS_SUCCESS
    if (found := circle()) is not None:
        print("These modules import each other in a circle:", " -> ".join(found))
    return 0 if kept and found is None else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
