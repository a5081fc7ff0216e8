"""The examples whose programs are compiled for a TPU: arguments that make a short run of everything they do."""

RUNS: dict[str, list[str]] = {
    "embed": ["embed.py", "--device", "tpu"],
    "generate": ["generate.py", "--device", "tpu", "--new-tokens", "3"],
    "train_digits": [
        *("train_digits.py", "--device", "tpu", "--epochs", "1", "--steps", "3", "--workers", "1"),
        *("--plot", "curves.png", "--report", "digits.json"),
    ],
    "train_digits in bfloat16": [
        *("train_digits.py", "--device", "tpu", "--epochs", "1", "--steps", "3", "--workers", "1", "--bf16"),
        *("--plot", "curves.png", "--report", "digits.json"),
    ],
    # A layer's programs are every layer's.
    "finetune_lm": [
        *("finetune_lm.py", "--device", "tpu", "--steps", "3", "--layers", "2", "--report", "finetune.json"),
    ],
}
