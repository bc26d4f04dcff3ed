"""Documents that people submit: jobs, scripts, studies, templates, archives of code."""
