"""Commands for files on the server: datasets, models, archives of code."""
