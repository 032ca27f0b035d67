"""Language models trained as judges of reports: data from a teacher, recipes, the run."""
