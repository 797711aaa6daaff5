"""What is on disk: the config, the tensor table, and everything that makes or checks a checkpoint."""
