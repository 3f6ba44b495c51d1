"""The `edgekit` command, its subcommands, benchmarks and the tiny models with their trainer."""
