"""The removal of DistributedDataParallel and DataParallel: an engine does what they did."""
