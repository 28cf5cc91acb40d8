"""Data that knows whose it is: items with subjects, spread over silos, sampled by their stated laws."""
