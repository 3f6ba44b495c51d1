"""Running a bundle: engines, sessions, denoising loops, tokenizers. Imports no torch and no transformers."""
