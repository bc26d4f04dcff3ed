"""Fine-tuning: Hugging Face weights as a start, adapters beside them, and exports others can
read."""
