"""Reading, writing and making labelled sequences."""
