"""The common part of formats that keep weights in packages."""
