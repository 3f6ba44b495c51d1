"""The `coreai` format: assets (.aimodel) of Core AI."""
