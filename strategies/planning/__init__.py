"""What a run costs and whether it fits, before it starts. Pure, torch-free."""
