"""What happens inside one silo: noise, the one step, T steps."""
