"""What API, scheduler and worker must agree on: specs, states, messages, tables, rules."""
