"""Parallel training from one graph: a training step becomes the programs of many ranks.

========================= ==============================================================================
``ddp``                   PyTorch's DistributedDataParallel: gradients are summed in buckets
``fsdp2``                 PyTorch's fully_shard: parameters are shared out, and gathered by module; HSDP
``zero-1`` ...            DeepSpeed's ZeRO, stages 1 to 3
``megatron-ddp``          Megatron-LM's buckets, with or without the distributed optimiser
``parameter-server``      workers push gradients to servers and pull parameters, together or each for itself
``tensor-parallel``       Megatron-LM's split products, with or without sequence parallelism
``context-parallel``      ranks share sequences: attention by ring, all-gather or all-to-all
``expert-parallel``       ranks share the experts of a layer, and exchange tokens
``pipeline-parallel``     ranks have stages, and run micro-batches by a schedule
``gradient-accumulation`` several micro-batches before anything is summed
``rank-order``            the ranks of a combination in another order, on other devices
========================= ==============================================================================

Each rewrite takes the step of one device (`policies.compile.training` makes it of a forward graph) and puts a
program on every rank; most take that of each rank that another has made, too (`grid.combined`). Rules and
sources are in the files.
"""
