"""What formats that keep weights in packages have in common."""
