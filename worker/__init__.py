"""Agent, shim, launchers, judge and spool of a GPU node: everything that runs on each one."""
