"""Local algorithms as rows of public facts, what each row guarantees, and the plan that calibrates them."""
