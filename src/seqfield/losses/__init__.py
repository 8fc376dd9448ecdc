"""From chain scores and labels to a value and its score gradient. A loss never sees features."""
