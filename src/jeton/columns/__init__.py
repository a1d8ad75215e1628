"""The records of a flow: batches, columns, schemas, keys and compiled kernels."""
