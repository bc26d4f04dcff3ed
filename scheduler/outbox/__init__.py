"""Messages that leave the scheduler: doorbells, mail, webhooks."""
