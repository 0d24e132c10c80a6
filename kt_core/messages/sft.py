"""Messages of `kt sft`."""

_INIT = """### {model_note}
model_name_or_path: {model}

### {method_note}
stage: sft
finetuning_type: lora
lora_rank: 8
lora_alpha: 16
lora_target: all  # {target_note}

### {data_note}
dataset: data.jsonl
cutoff_len: 2048
packing: false

### {output_note}
output_dir: {output}
logging_steps: 10
save_steps: 500
plot_loss: true

### {train_note}
per_device_train_batch_size: 1
gradient_accumulation_steps: 8
learning_rate: 1.0e-4
num_train_epochs: 3
lr_scheduler_type: cosine
warmup_ratio: 0.1
bf16: true
disable_gradient_checkpointing: false  # {checkpoint_note}
"""

MESSAGES: dict[str, tuple[str, str]] = {
    "sft.help": ("Fine-tune a model whose experts stay in CPU memory", "微调专家常驻 CPU 内存的模型"),
    "sft.examples": (
        "kt sft init demo --output run.yaml\nkt sft train run.yaml\nkt sft train run.yaml learning_rate=5e-5 --dry-run\n"
        "kt sft chat saves/demo\nkt sft merge saves/demo merged",
        "kt sft init demo --output run.yaml\nkt sft train run.yaml\nkt sft train run.yaml learning_rate=5e-5 --dry-run\n"
        "kt sft chat saves/demo\nkt sft merge saves/demo merged",
    ),
    "sft.train_help": (
        "Train low-rank additions by a file of settings\n"
        "Keys are LlamaFactory's. The adapter is left in output_dir, in PEFT's format, with checkpoints that a run resumes from.",
        "按设置文件训练低秩增量\n键名与 LlamaFactory 相同。适配器以 PEFT 格式保存在 output_dir，其中的检查点可用于恢复训练。",
    ),
    "sft.file": ("YAML file of settings", "YAML 设置文件"),
    "sft.words": (
        "Settings on top of the file's, as key=value",
        "覆盖文件的设置，写成 key=value",
    ),
    "sft.dry_run": ("Show data, steps and memory, and train nothing", "只显示数据、步数和内存，不训练"),
    "sft.init_help": ("Write a commented file of settings for a model", "为模型生成带注释的设置文件"),
    "sft.model": ("Model: a name, a folder or a GGUF file", "模型：名称、文件夹或 GGUF 文件"),
    "sft.output": ("File to write; default: standard output", "要写入的文件；默认为标准输出"),
    "sft.merge_help": (
        "Write a model and an adapter as one checkpoint\n"
        "transformers and kt run load it. Its type is the base model's, bfloat16 where that is quantised.",
        "将模型与适配器写成一个检查点\n可由 transformers 和 kt run 加载。类型与基础模型相同；基础模型已量化时为 bfloat16。",
    ),
    "sft.adapter": ("Folder of the adapter: output_dir, or a checkpoint in it", "适配器文件夹：output_dir 或其中的检查点"),
    "sft.to": ("Folder to write, which must be new or empty", "要写入的文件夹，必须不存在或为空"),
    "sft.base": ("Base model; default: the one the adapter was trained on", "基础模型；默认为训练适配器时的模型"),
    "sft.export_help": (
        "Write an adapter as KTransformers' pair of files\n"
        "fused_expert_lora.safetensors has the experts' additions, adapter_model.safetensors all others. kt sft merge and kt sft chat read it too.",
        "将适配器写成 KTransformers 的文件对\nfused_expert_lora.safetensors 为专家的增量，adapter_model.safetensors 为其余部分。kt sft merge 和 kt sft chat 也可读取。",
    ),
    "sft.chat_help": (
        "Talk to a model with an adapter\n"
        "ADAPTER is an adapter's folder, or a file with model_name_or_path and adapter_name_or_path. Both are merged once, into kt's cache.",
        "与带适配器的模型对话\nADAPTER 为适配器文件夹，或含有 model_name_or_path 与 adapter_name_or_path 的文件。二者会合并一次并存入 kt 的缓存。",
    ),
    "sft.adapter_or_file": ("Folder of the adapter, or a YAML file", "适配器文件夹，或 YAML 文件"),
    "sft.written": ("Written: {path}", "已写入：{path}"),
    "sft.exists": (
        "{path} exists already.\nkt does not write over a file of settings.\nName another one.",
        "{path} 已存在。\nkt 不会覆盖设置文件。\n请指定其他文件。",
    ),
    "sft.start": ("starting", "正在启动"),
    "sft.training": ("training", "训练"),
    "sft.steps": ("steps", "步"),
    "sft.step": (
        "step {step} of {total}: loss {loss:.4f}, learning rate {lr:.2e}, gradient {norm:.2f}, {rate:.1f} tok/s, {memory:.1f} GiB, {left} left",
        "第 {step}/{total} 步：损失 {loss:.4f}，学习率 {lr:.2e}，梯度 {norm:.2f}，{rate:.1f} tok/s，{memory:.1f} GiB，剩余 {left}",
    ),
    "sft.done": ("The adapter is in {folder}", "适配器位于 {folder}"),
    "sft.next": ("Talk to it: kt sft chat {folder}", "与其对话：kt sft chat {folder}"),
    "sft.stopped": (
        "Stopped. Go on from the last checkpoint: resume_from_checkpoint=true",
        "已停止。从最近的检查点继续：resume_from_checkpoint=true",
    ),
    "sft.merging": ("Merging {adapter} into {base}", "正在将 {adapter} 合并到 {base}"),
    "sft.merged": ("Run it: kt run {folder}", "运行：kt run {folder}"),
    "sft.ended": (
        "The process ended with code {code}.\n{reason}\nLog: {log}",
        "进程以代码 {code} 结束。\n{reason}\n日志：{log}",
    ),
    "sft.killed": (
        "The process was ended by signal {code}.\n{reason}\nLog: {log}",
        "进程被信号 {code} 终止。\n{reason}\n日志：{log}",
    ),
    "sft.init": (
        _INIT.format_map(
            {
                "model": "{model}", "output": "{output}",
                "model_note": "model",
                "method_note": "method",
                "target_note": "or names, as q_proj,v_proj,experts",
                "data_note": "data: a .json, .jsonl or .txt file, or names in dataset_info.json of dataset_dir",
                "output_note": "output",
                "train_note": "training",
                "checkpoint_note": "true: faster, and more memory",
            }
        ),
        _INIT.format_map(
            {
                "model": "{model}", "output": "{output}",
                "model_note": "模型",
                "method_note": "方法",
                "target_note": "或层名，例如 q_proj,v_proj,experts",
                "data_note": "数据：.json、.jsonl 或 .txt 文件，或 dataset_dir 中 dataset_info.json 里的名称",
                "output_note": "输出",
                "train_note": "训练",
                "checkpoint_note": "true：更快，但占用更多内存",
            }
        ),
    ),
}  # fmt: skip
