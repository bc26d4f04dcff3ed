"""Courses: bundles that staff apply, and how far the class is."""
