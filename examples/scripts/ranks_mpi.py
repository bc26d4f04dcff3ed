"""mpi4py's first exercise: every rank says who it is, and they add up their numbers.

    trainyard submit --script ranks_mpi.py --launcher mpirun --requirements requirements-mpi.txt \\
        --ranks 2 --wall-time 5min
"""

from mpi4py import MPI

world = MPI.COMM_WORLD
print(f"rank {world.rank} of {world.size} on {MPI.Get_processor_name()}")
total = world.allreduce(world.rank + 1)
if world.rank == 0:
    print(f"1 + ... + {world.size} = {total}")
