"""Generation of reports: batches, engines and the files of responses."""
