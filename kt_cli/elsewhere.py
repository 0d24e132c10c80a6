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
        **dict.fromkeys(("ps", "status", "probe", "check", "logs"), _DOCTOR),
        **dict.fromkeys(("bench", "benchmark"), "kt microbench moe"),
        **dict.fromkeys(("train", "finetune", "fine-tune", "lora"), "kt sft train FILE"),
        "help": _HELP,
    },
    "kt model": {
        **dict.fromkeys(("download", "get", "add"), _PULL),
        **dict.fromkeys(("remove", "delete"), _REMOVE),
        **dict.fromkeys(("show", "info"), _PLAN),
        "search": _LIST,
    },
    "kt config": {"show": "kt config list", "reset": "kt config unset KEY", "edit": "kt config path"},
}
OPTIONS: dict[str, dict[str, str]] = {
    "kt run": {
        **dict.fromkeys(("--model", "--model-path", "--model_path", "-m", "--gguf-path", "--gguf_path"), _SERVE),
        **dict.fromkeys(("--kt-weight-path", "--weights-path"), _SERVE),
        **dict.fromkeys(("--kt-cpuinfer", "--cpu-threads", "--cpu_infer", "--num-threads"), "--threads"),
        **dict.fromkeys(("--context-length", "--ctx-size", "--max-model-len", "--max-total-tokens", "-c"), "--context"),
        **dict.fromkeys(("--max-new-tokens", "--max_new_tokens", "--n-predict", "-n"), "--max-tokens"),
        **dict.fromkeys(("--optimize-config-path", "--optimize_config_path", "--optimize_rule_path"), "--rules"),
    },
    "kt chat": {
        **dict.fromkeys(("--host", "--port", "-H"), "--url"),
        **dict.fromkeys(("--prompt", "-p"), "kt run NAME -p TEXT"),
    },
}
PLANNED = {
    "--kt-method",
    "--kt-threadpool-count",
    "--kt-numa-nodes",
    "--numa-nodes",
}  # of kt run; its plan decides them
