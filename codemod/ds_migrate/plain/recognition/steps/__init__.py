"""The operations of a step, and code that changes weights without them."""
