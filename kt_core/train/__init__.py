"""Fine-tuning: settings, data, low-rank adapters, the training process and what it writes.

`settings` and `data` need neither torch nor the extension; the rest runs in the process that `kt sft train` starts.
"""
