"""Fine-tuning: Hugging Face weights as a start, and exports others can read."""
