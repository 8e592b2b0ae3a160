"""Tiny LoRA adapters of golden models: what they are, and what transformers computes with them."""
