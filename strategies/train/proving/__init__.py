"""Programs that `trainyard prove` starts: watched trainings, and measurements of torch."""
