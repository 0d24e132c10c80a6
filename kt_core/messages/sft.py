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
        "Settings on top of the file's, as key=value; default: none",
        "覆盖文件的设置，写成 key=value；默认无",
    ),
    "sft.dry_run": ("Show data, steps and memory, and train nothing", "只显示数据、步数和内存，不训练"),
    "sft.needs_file": (
        "No file of settings is named.\nA run is described by a YAML file.\nWrite one: kt sft init MODEL --output run.yaml",
        "没有指定设置文件。\n训练由一个 YAML 文件描述。\n生成一个：kt sft init MODEL --output run.yaml",
    ),
    "sft.ask_model": ("Which model? A name, a folder or a GGUF file:", "使用哪个模型？名称、文件夹或 GGUF 文件："),
    "sft.ask_data": ("Which data? A .json, .jsonl or .txt file:", "使用哪些数据？.json、.jsonl 或 .txt 文件："),
    "sft.ask_type": ("What is to be trained?", "训练哪些内容？"),
    "sft.type_lora": ("low-rank additions: an adapter", "低秩增量：适配器"),
    "sft.type_full": ("every weight: a model", "全部权重：完整模型"),
    "sft.type_freeze": ("every weight of the last layers: a model", "最后几层的全部权重：完整模型"),
    "sft.ask_output": ("Where to? A folder:", "保存到哪个文件夹？"),
    "sft.ask_file": ("Settings are kept in the file:", "设置保存到文件："),
    "sft.same_as": ("The same again: kt sft train {file}", "再次执行：kt sft train {file}"),
    "sft.accelerate": (
        "YAML file of accelerate: several processes, with FSDP2; default: one process",
        "accelerate 的 YAML 文件：以 FSDP2 使用多个进程；默认单进程",
    ),
    "sft.kt_config_moved": (
        "kt_config in {file} is taken; it belongs into the training file, whose values come first.",
        "已采用 {file} 中的 kt_config；它应写在训练文件中，且以训练文件的值为准。",
    ),
    "sft.init_help": ("Write a commented file of settings for a model", "为模型生成带注释的设置文件"),
    "sft.model": ("Model: a name, a folder or a GGUF file", "模型：名称、文件夹或 GGUF 文件"),
    "sft.output": ("File to write; default: standard output", "要写入的文件；默认为标准输出"),
    "sft.merge_help": (
        "Write a model and an adapter as one checkpoint\n"
        "transformers and kt run load it. Its type is the base model's, bfloat16 where that is quantised.",
        "将模型与适配器写成一个检查点\n可由 transformers 和 kt run 加载。类型与基础模型相同；基础模型已量化时为 bfloat16。",
    ),
    "sft.adapter": ("The adapter: output_dir, a checkpoint in it, or a GGUF file", "适配器：output_dir、其中的检查点，或 GGUF 文件"),
    "sft.to": ("Folder to write, which must be new or empty", "要写入的文件夹，必须不存在或为空"),
    "sft.base": ("Base model; default: the one the adapter was trained on", "基础模型；默认为训练适配器时的模型"),
    "sft.export_help": (
        "Write an adapter in another program's form\n"
        "pair: KTransformers' fused_expert_lora.safetensors and an adapter_model.safetensors of all else. peft: one folder for PEFT. sglang: the same with the names that KTransformers' converter gives. ADAPTER may itself be any of these, or a GGUF file. For GGUF models: kt sft merge, then kt quant.",
        "将适配器写成其他程序的形式\npair：KTransformers 的 fused_expert_lora.safetensors 与其余部分的 adapter_model.safetensors。peft：供 PEFT 使用的单个文件夹。sglang：同上，名称如 KTransformers 转换脚本所写。ADAPTER 本身可以是其中任一形式或 GGUF 文件。需要 GGUF 模型时，先 kt sft merge，再 kt quant。",
    ),
    "sft.export_as": ("pair, peft or sglang (default pair)", "pair、peft 或 sglang（默认 pair）"),
    "sft.export_part": (
        "all, experts or others: additions to experts, or all but those (default all)",
        "all、experts 或 others：仅专家的增量，或除此之外的部分（默认 all）",
    ),
    "sft.eval_help": (
        "Measure a model, or an adapter beside its base, on data\n"
        "loss: on answers, and perplexity. text: BLEU and ROUGE of what it writes. choice: rows with choices and answer, the share that is right.",
        "在数据上评测模型，或对比适配器与其基础模型\nloss：回答的损失与困惑度。text：所写内容的 BLEU 与 ROUGE。choice：含 choices 与 answer 的行，计算正确率。",
    ),
    "sft.eval_source": ("Folder of an adapter, or a model", "适配器文件夹，或模型"),
    "sft.eval_data": ("Data file: .json, .jsonl or .txt", "数据文件：.json、.jsonl 或 .txt"),
    "sft.eval_kind": ("What to measure: loss, text or choice; default: loss", "评测内容：loss、text 或 choice；默认 loss"),
    "sft.eval_tokens": ("Tokens of an answer (text); default: 128", "回答的最大 token 数（text）；默认 128"),
    "sft.measured": ("{name}: {numbers}", "{name}：{numbers}"),
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
        "step {step} of {total}: loss {loss:.4f}, learning rate {lr:.2e}, gradient {norm:.2f}, {rate:.1f} tok/s, experts {experts:.0f} %, data {data:.0f} % of the time, {memory:.1f} GiB, {left} left",
        "第 {step}/{total} 步：损失 {loss:.4f}，学习率 {lr:.2e}，梯度 {norm:.2f}，{rate:.1f} tok/s，专家占时 {experts:.0f} %，数据 {data:.0f} %，{memory:.1f} GiB，剩余 {left}",
    ),
    "sft.done": ("The adapter is in {folder}", "适配器位于 {folder}"),
    "sft.next": ("Talk to it: kt sft chat {folder}", "与其对话：kt sft chat {folder}"),
    "sft.done_whole": ("The trained model is in {folder}", "训练后的模型位于 {folder}"),
    "sft.next_whole": ("Run it: kt run {folder}", "运行：kt run {folder}"),
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
