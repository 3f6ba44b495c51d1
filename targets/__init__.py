"""Device families: one export recipe each, and the device database."""
