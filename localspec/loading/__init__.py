"""From a typed request to loaded models: find, check, plan, load, measure."""
