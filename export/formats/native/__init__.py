"""The `native` format: op lists in the manifest, for the native core."""
