"""Commands for jobs: plan, submit, list, steer, follow, verify, report."""
