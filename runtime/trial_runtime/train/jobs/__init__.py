"""``ds-train --write-job``: an experiment config as a job for SLURM, SkyPilot or Kubeflow."""
