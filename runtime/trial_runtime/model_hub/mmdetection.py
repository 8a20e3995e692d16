"""Refusal of ``model_hub.mmdetection``, at the import."""

raise ImportError(
    "model_hub.mmdetection has no counterpart: mmdetection's last release is from January 2024 and does not run on "
    "current versions of torch. Port the trial to another detection library, such as torchvision.models.detection"
)
