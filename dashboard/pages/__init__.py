"""The pages, a file for each: read what is shown from the API, render it."""
