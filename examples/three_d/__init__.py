"""What train_3d.py is made of.

models      GPT and Qwen2.5 from transformers' configs, a pipeline stage of one, its random weights, how tensor parallelism splits it
parallel    a mesh pp x dp x tp, FSDP2 or DDP, the 1F1B schedule, gradient clipping, a check that replicas are equal
text        bytes of Python's own sources, the same batches for every run and mesh
saving      checkpoints by torch.distributed.checkpoint
curves      losses of several runs as a picture
told        progress, the JSON log, bytes a dimension
"""
