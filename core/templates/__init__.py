"""Templates: jobs and agendas with locked and open fields. Pure."""
