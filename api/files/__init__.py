"""Files that users bring and jobs leave, and how long they are kept."""
