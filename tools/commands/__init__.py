"""The subcommands of `edgekit`: one module each, named like it, with the click command in `command`."""
