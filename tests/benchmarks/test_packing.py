"""The replay of a course's week with leases of whole nodes and of GPUs."""

from benchmarks.packing import STUDENTS, Demand, Packing, Week, measure, table

SEEDS = range(1, 4)


def test_leases_of_gpus_serve_more_students_in_more_gpu_hours() -> None:
    demand = Demand(days=2)
    nodes, slots = (measure(demand, one, SEEDS) for one in (Packing.WHOLE_NODES, Packing.RULE))
    assert slots.small > 1.5 * nodes.small
    assert slots.gpu_hours == 3 * slots.small


def test_the_rule_keeps_more_whole_nodes_bookable_than_spreading() -> None:
    demand = Demand(days=8, large_share=0.25)
    spread, packed = (measure(demand, one, SEEDS) for one in (Packing.SPREAD, Packing.RULE))
    assert packed.whole_blocks > spread.whole_blocks
    assert packed.large_refused <= spread.large_refused


def test_a_week_is_the_same_for_equal_seeds_and_counts_every_student_once() -> None:
    demand = Demand(days=3, large_share=0.25)
    week = Week(demand, Packing.RULE, 7).run()
    assert week == Week(demand, Packing.RULE, 7).run()
    assert week != Week(demand, Packing.RULE, 8).run()
    assert week.small + week.large + week.large_refused <= STUDENTS
    assert week.fragmented <= week.large_refused


def test_the_table_has_a_line_for_each_demand_and_rule() -> None:
    lines = table([Demand(days=1), Demand(days=1, large_share=0.5)], [1]).splitlines()
    assert len(lines) == 2 + 2 + len(Packing)
