"""Results of several jobs: studies, comparisons, reports."""
