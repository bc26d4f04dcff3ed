"""Live streams of jobs, lists and calendars; curves and logs of a job."""
