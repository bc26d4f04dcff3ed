"""A course's busiest hours on the whole platform: 191 students, seven nodes, two cores for all."""
