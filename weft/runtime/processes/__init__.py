"""Many processes: plans are carried out over `torch.distributed`, each process its own part."""
