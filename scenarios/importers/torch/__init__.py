"""PyTorch modules, by torch.export."""
