"""The facts of one trial: what it wraps, who owns whose parameters, how it steps, how it reads its batches.

Built once, before anything is edited, and frozen; decisions and rules read it and never rediscover it from syntax.
"""
