"""Documents that people submit: jobs, scripts, studies, archives of code."""
