"""Order and place of waiting jobs. Pure but for reading."""
