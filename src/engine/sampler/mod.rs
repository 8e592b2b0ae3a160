//! Sampling: pure functions of one row of logits. Order of application as vLLM's V1 runner.
