"""What proves ranks to each other, and a layout against one rank."""
