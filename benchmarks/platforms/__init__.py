"""Trainyard beside Slurm, Ray Jobs and MLflow, on one machine in one run."""
