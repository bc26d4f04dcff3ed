"""Commands for groups of jobs: studies and agendas."""
