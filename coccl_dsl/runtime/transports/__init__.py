"""How wires move between ranks: in this process, through torch's process group, or through NCCL."""
