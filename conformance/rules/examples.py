"""The examples whose programs are compiled for a TPU: arguments that make a short run of everything they do."""

EXAMPLES: dict[str, list[str]] = {
    "embed.py": ["--device", "tpu"],
    "generate.py": ["--device", "tpu", "--new-tokens", "3"],
}
