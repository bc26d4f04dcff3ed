"""Names and settings of Hugging Face checkpoints. Torch-free."""
