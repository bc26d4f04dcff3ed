"""The node itself: its folder and attempts, its way to the API, its processes, memory and cores."""
