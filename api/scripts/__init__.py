"""Users' own scripts: their code and their secrets."""
