"""The model of one trial: what it wraps, who owns whose parameters, how it steps, how it reads its batches.

Built once, before anything is touched; rules read it and never rediscover it from syntax.
"""
