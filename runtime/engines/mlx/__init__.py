"""MLX: functions exported by it, checked before it sees them."""
