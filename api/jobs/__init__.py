"""Jobs: submit, plan, look, steer, compare, study, report."""
