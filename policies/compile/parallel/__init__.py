"""Parallel training from one graph: a training step becomes the programs of many ranks.

================ =====================================================================================
``ddp``          PyTorch's DistributedDataParallel: gradients are summed in buckets
``fsdp2``        PyTorch's fully_shard: parameters are shared out, and gathered module by module; HSDP
``zero-1`` ...   DeepSpeed's ZeRO, stages 1 to 3
``megatron-ddp`` Megatron-LM's buckets, with or without the distributed optimiser
``tensor-parallel``   Megatron-LM's split products, with or without sequence parallelism
``context-parallel``  ranks share a sequence: ring, all-gather, all-to-all
``gradient-accumulation``, ``pipeline-parallel``  several micro-batches, of which ranks may have stages
``rank-order``   the ranks of a combination in another order, on other devices
``parameter-server``  workers push gradients to servers and pull parameters, together or each for itself
``expert-parallel`` ranks share the experts of a layer, and exchange tokens
================ =====================================================================================

Each rewrite takes the step of one device (`policies.compile.training` makes it of a forward graph) and puts a
program on every rank. Rules and sources are in the files.
"""
