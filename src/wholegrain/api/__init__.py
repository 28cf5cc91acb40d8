"""The front door: what `import wholegrain as wg` offers in Python, made of the parts below it."""
