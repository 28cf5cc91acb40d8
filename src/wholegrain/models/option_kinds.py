"""What options of models may be: bounds far above any real model, and below what memory or torch would fail at.

A model is built layer by layer, so that a slip of a few zeros would fill the memory before anybody is told of it.
"""

from typing import Annotated

from pydantic import Field

Size = Annotated[int, Field(gt=0, le=2**16)]
"""A width, or a number of channels, units or heads."""
Spare = Annotated[int, Field(ge=0, le=2**16)]
"""A width that may be nothing."""
Depth = Annotated[int, Field(gt=0, le=1000)]
"""A number of layers."""
Vocabulary = Annotated[int, Field(gt=0, le=2**24)]
"""A number of tokens."""
Token = Annotated[int, Field(ge=0, lt=2**24)]
"""The number of a token."""
Chance = Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)]
"""Of a value to be dropped; at 1, nothing would be left to learn from."""
