"""Core AI: packages run by coreai-core, read ahead of it and checked for its version."""
