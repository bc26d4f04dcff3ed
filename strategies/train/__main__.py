"""`python -m strategies.train`: one rank, as main.py has it."""

from strategies.train.main import end_process, main

if __name__ == "__main__":
    end_process(main())
