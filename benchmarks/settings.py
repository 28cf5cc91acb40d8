"""Choices that every contestant shares."""

CLIP_NORM = 1.0
NOISE_MULTIPLIER = 1.0
# Small, so that parameters stay near where they started and every contestant works on like numbers.
LEARNING_RATE = 1e-3
