"""Pages with tables and charts, each one file that asks nobody for anything."""
