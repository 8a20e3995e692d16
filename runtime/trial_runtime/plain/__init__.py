"""Helpers of scripts that ``ds-migrate --plain`` converted: what plain DeepSpeed lacks or does silently wrong."""

from trial_runtime.plain._agreement import all_ranks, any_rank, mean_over_ranks, rank_0_decides, share_weights
from trial_runtime.plain._checkpoint import load_optimizer_state, optimizer_state, save_on_main_rank
from trial_runtime.plain._closures import step_with
from trial_runtime.plain._distributed import global_rank, init_distributed, is_main_rank, local_rank, run_worker
from trial_runtime.plain._engine import engine_of, match_torch, use_scaler
from trial_runtime.plain._loader import count_samples, shard
from trial_runtime.plain._rank_zero import NoTracker, rank_0_first, rank_0_text, wait_for_all_ranks
from trial_runtime.pytorch.deepspeed import EngineModule

__all__ = [
    "EngineModule",
    "NoTracker",
    "all_ranks",
    "any_rank",
    "count_samples",
    "engine_of",
    "global_rank",
    "init_distributed",
    "is_main_rank",
    "load_optimizer_state",
    "local_rank",
    "match_torch",
    "mean_over_ranks",
    "optimizer_state",
    "rank_0_decides",
    "rank_0_first",
    "rank_0_text",
    "run_worker",
    "save_on_main_rank",
    "shard",
    "share_weights",
    "step_with",
    "use_scaler",
    "wait_for_all_ranks",
]
