"""The `mlx` format: functions exported by MLX, weights as mlx-lm packs them."""
