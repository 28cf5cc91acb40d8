"""The paper's evaluation, run again: recipes, runs that go on where they stopped, figures, and every claim checked."""
