"""Expert parallelism: experts of a layer on many ranks, and which tokens go to which of them."""
