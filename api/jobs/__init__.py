"""Jobs: submit, plan, look, steer."""
