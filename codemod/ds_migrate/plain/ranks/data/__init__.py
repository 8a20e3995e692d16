"""The share of the data that each rank trains on, and what a program counts or averages over it."""
