"""Invariants of the database, as queries."""

# Each gives rows only where something is wrong.
INVARIANTS = {
    "a job has two live attempts": """
        SELECT job_id FROM attempts WHERE state <> 'exited' GROUP BY job_id HAVING count(*) > 1""",
    "the epochs of a job have a gap": """
        SELECT j.id FROM jobs j LEFT JOIN attempts a ON a.job_id = j.id
        GROUP BY j.id, j.epoch
        HAVING count(a.id) <> j.epoch OR coalesce(max(a.epoch), 0) <> j.epoch""",
    "an attempt that is not the newest lives": """
        SELECT a.id FROM attempts a JOIN jobs j ON j.id = a.job_id
        WHERE a.state <> 'exited' AND a.epoch <> j.epoch""",
    "a live attempt has no open lease": """
        SELECT a.id FROM attempts a JOIN attempt_parts p ON p.attempt_id = a.id
        JOIN leases l ON l.id = p.lease_id
        WHERE a.state <> 'exited' AND l.state NOT IN ('active', 'ending')""",
    "an attempt was stopped before its time": """
        SELECT id, outcome FROM attempts WHERE outcome IN ('lease_ended', 'time_limit')""",
    "more slots of a node are held than it has": """
        SELECT one.id FROM occupancy one JOIN nodes n ON n.id = one.node_id
        WHERE one.live AND one.kind <> 'down' AND n.slots < (
            SELECT sum(coalesce(beside.num_slots, n.slots)) FROM occupancy beside
            WHERE beside.node_id = n.id AND beside.live AND beside.kind <> 'down'
            AND beside.hold_start <= one.hold_start AND beside.hold_end > one.hold_start)""",
    "a job succeeded without one succeeded attempt": """
        SELECT j.id FROM jobs j LEFT JOIN attempts a ON a.job_id = j.id AND a.outcome = 'succeeded'
        GROUP BY j.id, j.state HAVING (j.state = 'succeeded') <> (count(a.id) = 1)""",
    "a state is not the one its last event tells": """
        SELECT j.id FROM jobs j JOIN events e ON e.subject = j.id AND e.id = (
            SELECT max(id) FROM events WHERE subject = j.id AND to_state IS NOT NULL
            AND kind NOT LIKE 'attempt_%')
        WHERE e.to_state <> j.state""",
    "two jobs have one key": "SELECT name FROM jobs GROUP BY name HAVING count(*) > 1",
}
