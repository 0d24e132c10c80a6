"""What other programs of this kind call things, and what does the same here: command -> word -> what to type."""

_SERVE, _PULL, _LIST, _REMOVE = "kt run NAME", "kt model pull NAME", "kt model list", "kt model rm NAME"
_PLAN, _DOCTOR, _HELP = "kt plan NAME", "kt doctor", "kt --help"

COMMANDS: dict[str, dict[str, str]] = {
    "kt": {
        **dict.fromkeys(("serve", "start", "launch", "load"), _SERVE),
        **dict.fromkeys(("generate", "ask", "complete"), "kt run NAME -p TEXT"),
        **dict.fromkeys(("pull", "download"), _PULL),
        **dict.fromkeys(("list", "ls", "models"), _LIST),
        **dict.fromkeys(("rm", "remove", "delete"), _REMOVE),
        **dict.fromkeys(("show", "info", "explain", "fit", "estimate"), _PLAN),
        **dict.fromkeys(("probe", "check"), _DOCTOR),
        **dict.fromkeys(("status", "servers"), "kt ps"),
        **dict.fromkeys(("kill", "down", "unload"), "kt stop"),
        **dict.fromkeys(("log", "tail"), "kt logs"),
        "benchmark": "kt bench NAME",
        **dict.fromkeys(("quantize", "quantise", "convert"), "kt quant NAME"),
        **dict.fromkeys(("perplexity", "eval"), "kt bench quality NAME"),
        **dict.fromkeys(("train", "finetune", "fine-tune", "lora"), "kt sft train FILE"),
        "help": _HELP,
    },
    "kt model": {
        **dict.fromkeys(("download", "get"), _PULL),
        **dict.fromkeys(("remove", "delete"), _REMOVE),
        **dict.fromkeys(("show", "info"), _PLAN),
        "search": _LIST,
    },
    "kt config": {"reset": "kt config unset KEY"},
}
OPTIONS: dict[str, dict[str, str]] = {
    "kt run": {
        **dict.fromkeys(("-m", "--gguf-path", "--gguf_path"), _SERVE),
        **dict.fromkeys(("--cpu_infer", "--num-threads"), "--threads"),
        **dict.fromkeys(("--ctx-size", "--max-model-len", "-c"), "--context"),
        **dict.fromkeys(("--max-new-tokens", "--max_new_tokens", "--n-predict", "-n"), "--max-tokens"),
        **dict.fromkeys(("--optimize-config-path", "--optimize_config_path", "--optimize_rule_path"), "--rules"),
    },
    "kt quant": {
        **dict.fromkeys(("--output", "--outfile"), "--out"),
        **dict.fromkeys(("--outtype", "--type", "--quant-method", "--scheme"), "--method"),
        **dict.fromkeys(("--cpu-threads", "--nthread"), "--threads"),
    },
    "kt chat": {
        **dict.fromkeys(("--host", "--port", "-H"), "--url"),
    },
}
