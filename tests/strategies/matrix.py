"""The cells of the equivalence matrix: legal splits, and the variant that each of them takes."""

from layouts import all_splits, cover, layouts, legal_splits

from strategies.spec import PipelineSchedule

MATRIX = cover(legal_splits(all_splits(layout for ranks in (1, 2, 4) for layout in layouts(ranks))))

# A few of 8 ranks: three axes at once.
LARGE_MATRIX = cover(
    legal_splits(
        split
        for split in all_splits(layout for layout in layouts(8) if max(layout.degrees) == 2)
        if split.schedule in (None, PipelineSchedule.ONE_F_ONE_B)
    )
)
