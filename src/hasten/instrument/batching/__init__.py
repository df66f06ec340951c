"""What a child measures for `hasten batch`: memory, and gradients at weights that stand still."""
