"""What PyTorch's execution graphs record: operators with their tensors, and what needs what by them."""
