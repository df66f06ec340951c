"""hasten makes PyTorch training faster on the script you already have, and proves it."""
