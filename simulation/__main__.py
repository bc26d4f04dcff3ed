"""`python -m simulation TRACE`: replay a workload through the scheduler's own functions."""

import sys

from simulation.simulate import main

if __name__ == "__main__":
    sys.exit(main())
