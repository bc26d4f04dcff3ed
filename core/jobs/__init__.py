"""Life of jobs and attempts: assign, stop, conclude, keep."""
