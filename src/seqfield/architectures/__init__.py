"""From parameters to chain scores, and from score gradients back to parameter gradients."""
