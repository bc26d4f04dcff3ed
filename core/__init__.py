"""Shared contract of API, scheduler and worker: specs, states, messages, tables, rules."""
