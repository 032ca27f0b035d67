"""RadFact: from verdicts and regions to scores."""
