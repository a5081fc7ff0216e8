"""What is not compared as it stands: one file per kind of rule, with its list and the reasons."""
