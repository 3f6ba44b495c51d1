"""`edgekit config`: where the installation keeps what C and C++ programs are built with."""

from __future__ import annotations

from pathlib import Path

import click

from edgekit.flashload import _native
from edgekit.tools.help import Command
from edgekit.tools.options import debug_option


@click.command(
    "config",
    cls=Command,
    short_help="Show where edgekit.h and the library are, for C and C++.",
    examples=(
        "edgekit config",
        "export PKG_CONFIG_PATH=$(edgekit config --pkgconfig-dir)",
        "cmake -B build -Dedgekit_DIR=$(edgekit config --cmake-dir)",
    ),
)
@click.option("--include-dir", "include", is_flag=True, help="Folder of edgekit.h.")
@click.option("--library", is_flag=True, help="The shared library.")
@click.option("--cmake-dir", "cmake", is_flag=True, help="edgekit_DIR for CMake's find_package(edgekit).")
@click.option("--pkgconfig-dir", "pkgconfig", is_flag=True, help="Add it to PKG_CONFIG_PATH.")
@debug_option
def command(**asked: bool) -> None:
    """Show where the installation keeps its header, its library and what describes them to build tools:
    pkg-config knows them as edgekit, CMake's find_package(edgekit) has the target edgekit::edgekit.
    """
    names = [name for name, given in asked.items() if given]
    if len(names) > 1:
        raise click.UsageError("each option asks for one path; give one of them, or none for all paths")
    found = places()
    if names:
        click.echo(found[names[0]])
        return
    for name, path in found.items():
        click.echo(f"{name:<9}  {path}")


def places() -> dict[str, Path]:
    """Paths by name: `include`, `library`, `cmake`, `pkgconfig`. Raises NativeMissing."""
    library = _native.installed_library()
    package = library.parents[1]
    return {
        "include": package / "include",
        "library": library,
        "cmake": package / "lib" / "cmake" / "edgekit",
        "pkgconfig": package / "lib" / "pkgconfig",
    }
