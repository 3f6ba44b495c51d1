"""The subcommands of `edgekit`: one module each, named like the command, with the click command in `command`."""
