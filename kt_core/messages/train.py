"""Messages of fine-tuning: settings, data, the run, and what it writes."""

MESSAGES: dict[str, tuple[str, str]] = {
    "train.no_file": (
        "There is no file {file}.\nA fine-tuning run is described by a YAML file.\nWrite one: kt sft init MODEL",
        "文件 {file} 不存在。\n微调任务由一个 YAML 文件描述。\n生成一个：kt sft init MODEL",
    ),
    "train.bad_yaml": (
        "{file} is not a YAML file of settings.\n{reason}\nCompare it with: kt sft init MODEL",
        "{file} 不是有效的 YAML 设置文件。\n{reason}\n可与此命令的输出对照：kt sft init MODEL",
    ),
    "train.unknown_key": (
        "Unknown setting: {setting}.\nThe nearest known one is: {near}.\nCorrect the name, or remove the line; all names are in docs/sft.md.",
        "未知的设置：{setting}。\n最接近的已知设置是：{near}。\n请更正名称或删除该行；全部名称见 docs/sft.md。",
    ),
    "train.bad_word": (
        "Not a setting: {word}.\nSettings after the file are written key=value.\nAn example is learning_rate=1e-5.",
        "这不是设置：{word}。\n文件之后的设置应写成 key=value。\n例如 learning_rate=1e-5。",
    ),
    "train.type": (
        "{setting} cannot be {value}.\nIts type is {type}.\nCorrect the value.",
        "{setting} 的值不能是 {value}。\n其类型为 {type}。\n请更正该值。",
    ),
    "train.choice": (
        "{setting} cannot be {value}.\nKnown values: {known}.\nChoose one of them.",
        "{setting} 的值不能是 {value}。\n可用的值：{known}。\n请从中选择。",
    ),
    "train.too_small": (
        "{setting} is {value}.\nThe least is {least}.\nRaise it.",
        "{setting} 为 {value}。\n最小值为 {least}。\n请增大该值。",
    ),
    "train.needs_key": (
        "The setting {setting} is missing.\nA run cannot begin without it.\nAdd it to the file, or after it: {setting}=VALUE",
        "缺少设置 {setting}。\n没有它无法开始。\n请写入文件，或加在命令末尾：{setting}=VALUE",
    ),
    "train.stage": (
        "Stage {stage} is not available.\nKnown stages: {known}.\nSet stage to one of them.",
        "不支持阶段 {stage}。\n已支持的阶段：{known}。\n请将 stage 设为其中之一。",
    ),
    "train.preference": (
        "pref_loss {loss} is not available.\nKnown losses: {known}.\nSet pref_loss to one of them.",
        "不支持 pref_loss {loss}。\n已支持的损失：{known}。\n请将 pref_loss 设为其中之一。",
    ),
    "train.packed_pairs": (
        "Preference pairs are not packed.\nBoth answers of a pair are rows of their own.\nSet packing to false.",
        "偏好数据不支持打包。\n每对中的两个回答各占一行。\n请将 packing 设为 false。",
    ),
    "train.finetuning_type": (
        "finetuning_type {type} is not available.\nKnown types: {known}.\nSet finetuning_type to one of them.",
        "不支持 finetuning_type {type}。\n已支持的类型：{known}。\n请将 finetuning_type 设为其中之一。",
    ),
    "train.two_modes": (
        "finetuning_type {type} and kt_config ask for different things (kt_train_mode {mode}, kt_full_weight_grad).\nfinetuning_type decides what is trained.\nRemove both keys from kt_config.",
        "finetuning_type {type} 与 kt_config（kt_train_mode {mode}、kt_full_weight_grad）相互矛盾。\n训练内容由 finetuning_type 决定。\n请从 kt_config 中删除这两个键。",
    ),
    "train.no_reference": (
        "pref_loss {loss} compares with the model as it was, of which finetuning_type {type} leaves no copy.\nA second copy of the experts would take their memory again.\nSet finetuning_type to lora, or pref_loss to orpo or simpo.",
        "pref_loss {loss} 要与训练前的模型比较，而 finetuning_type {type} 不保留其副本。\n再保留一份专家会占用同样多的内存。\n请将 finetuning_type 设为 lora，或将 pref_loss 设为 orpo 或 simpo。",
    ),
    "train.optim": (
        "optim {optim} is not available with finetuning_type {type}.\nThe experts' own step is AdamW: {known}.\nSet optim to one of them.",
        "finetuning_type {type} 不支持 optim {optim}。\n专家的优化步骤为 AdamW：{known}。\n请将 optim 设为其中之一。",
    ),
    "train.frozen_format": (
        "finetuning_type {type} cannot train weights stored as {formats}.\nOnly BF16, F16 and F32 weights can be trained themselves; others stay as they are and take additions.\nTake the BF16 checkpoint, or set finetuning_type to lora.",
        "finetuning_type {type} 无法训练以 {formats} 存储的权重。\n只有 BF16、F16 和 F32 权重可以直接训练；其他格式保持不变，只能训练增量。\n请使用 BF16 检查点，或将 finetuning_type 设为 lora。",
    ),
    "train.biased": (
        "{module}: experts with biases cannot be trained themselves.\nTheir biases would stay as they are, and no part of a layer is left out silently.\nSet finetuning_type to lora.",
        "{module}：带偏置的专家无法直接训练。\n其偏置将保持不变，而 kt 不会悄悄略过某一部分。\n请将 finetuning_type 设为 lora。",
    ),
    "train.key": (
        "The setting {setting} is not available yet.\nThe run would not be what it asks for.\nRemove it from the file.",
        "尚不支持设置 {setting}。\n否则训练将与其要求不符。\n请从文件中删除。",
    ),
    "train.rank": (
        "lora_rank {rank} is too large.\nThe kernels take ranks up to 256.\nLower lora_rank.",
        "lora_rank {rank} 过大。\n内核支持的秩最大为 256。\n请减小 lora_rank。",
    ),
    "train.two_ranks": (
        "Two ranks are given: {outer} as lora_rank, {inner} as kt_config.kt_lora_rank.\nThere is one rank for all layers.\nRemove kt_lora_rank.",
        "给出了两个秩：lora_rank 为 {outer}，kt_config.kt_lora_rank 为 {inner}。\n所有层使用同一个秩。\n请删除 kt_lora_rank。",
    ),
    "train.max_length": (
        "kt_model_max_length {longest} is too short for cutoff_len {cutoff}.\nIt must be at least {least}.\nRaise it, or remove it, and cutoff_len decides.",
        "kt_model_max_length {longest} 小于 cutoff_len {cutoff} 所需。\n至少应为 {least}。\n请增大或删除它，删除后以 cutoff_len 为准。",
    ),
    "train.no_effect": ("The setting {setting} has no effect in kt.", "设置 {setting} 在 kt 中不起作用。"),
    "train.dropout": (
        "lora_dropout acts on linear layers; experts are trained without dropout.",
        "lora_dropout 作用于线性层；专家训练时不使用 dropout。",
    ),
    "train.no_dataset_file": (
        "There is no data file {file}.\nThe data set points to it.\nCheck dataset and dataset_dir.",
        "数据文件 {file} 不存在。\n数据集指向了它。\n请检查 dataset 和 dataset_dir。",
    ),
    "train.no_dataset_info": (
        "The data set {name} was not found: there is no {file}.\nA name is looked up in that file; a path ends in .json, .jsonl or .txt.\nSet dataset to a file, or dataset_dir to the folder of dataset_info.json.",
        "找不到数据集 {name}：{file} 不存在。\n名称在该文件中查找；路径以 .json、.jsonl 或 .txt 结尾。\n请将 dataset 设为文件，或将 dataset_dir 设为 dataset_info.json 所在文件夹。",
    ),
    "train.no_dataset": (
        "{file} has no data set {name}.\nIt has: {known}.\nCorrect dataset.",
        "{file} 中没有数据集 {name}。\n其中有：{known}。\n请更正 dataset。",
    ),
    "train.remote_dataset": (
        "The data set {name} is neither a file nor one of the hub.\nkt reads data sets that dataset_info.json names by file_name or hf_hub_url.\nDownload it and add file_name.",
        "数据集 {name} 既不是文件，也不在 Hugging Face Hub 上。\nkt 只读取 dataset_info.json 中以 file_name 或 hf_hub_url 指定的数据集。\n请先下载并填写 file_name。",
    ),
    "train.not_rows": (
        "{file} is not a list of samples.\nA JSON data file is a list of objects; JSON lines end in .jsonl.\nCorrect or rename the file.",
        "{file} 不是样本列表。\nJSON 数据文件应为对象列表；JSON Lines 文件以 .jsonl 结尾。\n请更正或重命名该文件。",
    ),
    "train.bad_json": (
        "{where} is not JSON.\n{reason}\nCorrect the file.",
        "{where} 不是有效的 JSON。\n{reason}\n请更正该文件。",
    ),
    "train.bad_row": (
        "Sample {number} of {file} cannot be read.\n{reason}\nCorrect it, or the columns and tags in dataset_info.json.",
        "无法读取 {file} 的第 {number} 个样本。\n{reason}\n请更正样本，或 dataset_info.json 中的 columns 与 tags。",
    ),
    "train.no_template": (
        "The model has no chat template.\nConversations cannot be written as it expects them.\nSet template to a Jinja file, as in template: FILE.jinja.",
        "该模型没有聊天模板。\n无法按其要求书写对话。\n请将 template 设为 Jinja 文件，例如 template: FILE.jinja。",
    ),
    "train.template_refused": (
        "The model's chat template refuses a sample.\n{reason}\nCorrect the data, or set template to a Jinja file.",
        "该模型的聊天模板拒绝了一个样本。\n{reason}\n请更正数据，或将 template 设为 Jinja 文件。",
    ),
    "train.template_order": (
        "The chat template does not write the last answer after its prompt.\nSo kt cannot tell which tokens are the answer's.\nSet template to a Jinja file that does, or train_on_prompt to true.",
        "聊天模板没有把最后一个回答写在其提示之后。\n因此 kt 无法确定哪些 token 属于回答。\n请将 template 设为合适的 Jinja 文件，或将 train_on_prompt 设为 true。",
    ),
    "train.nothing_left": (
        "None of {samples} samples has an answer within {longest} tokens.\nThere is nothing to learn from.\nRaise cutoff_len, or check the data.",
        "{samples} 个样本在 {longest} 个 token 之内都没有回答。\n没有可学习的内容。\n请增大 cutoff_len 或检查数据。",
    ),
    "train.report": (
        "Data: {samples} samples ({dropped} dropped, {cut} cut), longest {longest} tokens; {rows} rows, {tokens} tokens an epoch, loss on {kept:.0f} % of them",
        "数据：{samples} 个样本（丢弃 {dropped} 个，截断 {cut} 个），最长 {longest} 个 token；{rows} 行，每轮 {tokens} 个 token，其中 {kept:.0f} % 计入损失",
    ),
    "train.no_accelerate": (
        "There is no file {file}.\nIt would say how many processes train, as accelerate has it.\nAn example is in docs/sft.md.",
        "文件 {file} 不存在。\n它按 accelerate 的格式描述训练进程数。\n示例见 docs/sft.md。",
    ),
    "train.few_gpus": (
        "num_processes is {processes}, and this machine has {gpus} GPUs.\nEach process needs one of its own.\nLower num_processes, or set use_cpu to true.",
        "num_processes 为 {processes}，而本机有 {gpus} 个 GPU。\n每个进程需要独占一个。\n请减小 num_processes，或将 use_cpu 设为 true。",
    ),
    "train.one_process": (
        "{count} processes cannot do this together.\nfull, freeze and resume_from_checkpoint are a single process's.\nStart the run without accelerate.",
        "{count} 个进程无法共同完成此任务。\nfull、freeze 和 resume_from_checkpoint 只能由单个进程执行。\n请不使用 accelerate 启动。",
    ),
    "train.plan": ("Plan: about {size} GiB of memory", "计划：约需 {size} GiB 内存"),
    "train.plan_gpu": ("about {size} GiB of each of {count} GPUs", "{count} 个 GPU 各约需 {size} GiB"),
    "train.plan_steps": ("{steps} steps", "{steps} 步"),
    "train.plan_time": ("about {time} by this machine's measured rates", "按本机实测速率约需 {time}"),
    "train.too_big": (
        "The run needs about {needed} GiB of memory.\nThis machine gives {limit} GiB; the experts alone take {experts} GiB.\nTake a checkpoint of fewer bits, or lower cutoff_len and lora_rank.",
        "训练约需 {needed} GiB 内存。\n本机可用 {limit} GiB；仅专家就占 {experts} GiB。\n请使用位数更少的检查点，或减小 cutoff_len 和 lora_rank。",
    ),
    "train.measuring": ("measuring: {name}", "评测：{name}"),
    "train.samples": ("samples", "个样本"),
    "train.needs_eval": (
        "The package {package} is not installed.\nBLEU and ROUGE are its work.\nInstall both: pip install 'kt-cli[eval]'",
        "未安装软件包 {package}。\nBLEU 与 ROUGE 由其计算。\n请安装：pip install 'kt-cli[eval]'",
    ),
    "train.evaluated": ("held-out loss at step {step}: {loss}", "第 {step} 步的验证损失：{loss}"),
    "train.too_many_held": (
        "val_size asks for {count} of {rows} rows.\nNothing would be left to train on.\nLower val_size.",
        "val_size 要求保留 {rows} 行中的 {count} 行。\n将没有可训练的数据。\n请减小 val_size。",
    ),
    "train.coverage": ("Trains {count} parameters: {layers}", "训练 {count} 个参数：{layers}"),
    "train.placed": (
        "Experts of a layer: {resident} on {device}, {streamed} brought there for each pass, {left} on the CPU",
        "每层专家：{resident} 个在 {device}，{streamed} 个每次调入，{left} 个在 CPU",
    ),
    "train.gpu_experts": (
        "kt_config.kt_num_gpu_experts is {count}, and this run keeps no experts on a GPU.\nThat takes one process, a GPU that torch can use, and finetuning_type lora.\nLeave it out, or take out use_cpu, --accelerate or the other finetuning_type.",
        "kt_config.kt_num_gpu_experts 为 {count}，但本次训练不会在 GPU 上保留专家。\n这需要单个进程、torch 可用的 GPU，以及 finetuning_type 为 lora。\n请去掉该项，或去掉 use_cpu、--accelerate 或其他 finetuning_type。",
    ),
    "train.peft_partial": (
        "PEFT will leave out the additions to shared and dense feed-forward layers; kt sft merge and kt sft chat read all of them.",
        "PEFT 会忽略共享层与稠密前馈层的增量；kt sft merge 和 kt sft chat 会全部读取。",
    ),
    "train.no_target": (
        "{name} is in no layer of this model that can be trained.\nIt has: {known}.\nCorrect lora_target, freeze_trainable_modules or freeze_extra_modules.",
        "此模型可训练的层中没有 {name}。\n可用的有：{known}。\n请更正 lora_target、freeze_trainable_modules 或 freeze_extra_modules。",
    ),
    "train.experts_left": (
        "The experts of {count} layers cannot be trained, the first of them {first}.\nTheir layout or activation has no kernel, and a part of the experts is never trained silently.\nChoose a model whose experts have a kernel; docs/support.md lists the formats.",
        "有 {count} 层的专家无法训练，第一处为 {first}。\n其布局或激活函数没有对应的内核；kt 不会只训练一部分专家而不说明。\n请选择专家有对应内核的模型；格式见 docs/support.md。",
    ),
    "train.not_finite_loss": (
        "The loss of step {step} is not a finite number.\nTraining on would spoil the adapter. The last good checkpoint: {folder}\nLower learning_rate and go on with resume_from_checkpoint=true.",
        "第 {step} 步的损失不是有限数值。\n继续训练会损坏适配器。最近的有效检查点：{folder}\n请降低 learning_rate，并以 resume_from_checkpoint=true 继续。",
    ),
    "train.not_finite_gradient": (
        "The gradient of {name} is not finite at step {step}.\nThe step was not taken; earlier checkpoints are good.\nLower learning_rate and go on with resume_from_checkpoint=true.",
        "第 {step} 步时 {name} 的梯度不是有限数值。\n该步未执行；之前的检查点有效。\n请降低 learning_rate，并以 resume_from_checkpoint=true 继续。",
    ),
    "train.older_run": (
        "{folder} holds an older run.\nIts last checkpoint is {last}.\nGo on from it with resume_from_checkpoint=true, or begin anew with overwrite_output_dir=true.",
        "{folder} 中已有先前的训练。\n其最近的检查点是 {last}。\n以 resume_from_checkpoint=true 从该处继续，或以 overwrite_output_dir=true 重新开始。",
    ),
    "train.no_checkpoint": (
        "There is no checkpoint in {folder}.\nA run cannot be resumed without one.\nRemove resume_from_checkpoint, or point it to a folder named checkpoint-STEP.",
        "{folder} 中没有检查点。\n没有检查点无法恢复训练。\n请删除 resume_from_checkpoint，或将其指向名为 checkpoint-STEP 的文件夹。",
    ),
    "train.no_adapter": (
        "There is no adapter in {folder}.\nAn adapter is a folder with adapter_config.json and adapter_model.safetensors.\nCheck the path; training leaves it in output_dir.",
        "{folder} 中没有适配器。\n适配器是包含 adapter_config.json 和 adapter_model.safetensors 的文件夹。\n请检查路径；训练结果位于 output_dir。",
    ),
    "train.bad_adapter": (
        "{file} cannot be read as an adapter.\n{reason}\nTake another checkpoint of the run.",
        "无法将 {file} 作为适配器读取。\n{reason}\n请使用该训练的另一个检查点。",
    ),
    "train.adapter_names": (
        "The adapter in {folder} is of another model or of other targets.\n{count} matrices do not match, the first: {first}\nCheck the model and lora_target.",
        "{folder} 中的适配器属于其他模型或其他目标层。\n有 {count} 个矩阵不匹配，第一个：{first}\n请检查模型和 lora_target。",
    ),
    "train.adapter_shape": (
        "{name} in the adapter has the shape {found}.\nThe model's is {expected}.\nCheck the model and lora_rank.",
        "适配器中 {name} 的形状为 {found}。\n模型要求的形状为 {expected}。\n请检查模型和 lora_rank。",
    ),
    "train.other_base": (
        "The adapter was not trained on {base}.\nIt was made from {made_from}, which has other tensors.\nGive that model: --base MODEL",
        "该适配器不是在 {base} 上训练的。\n它来自 {made_from}，其张量不同。\n请指定该模型：--base MODEL",
    ),
    "train.folder_in_use": (
        "{folder} is not empty.\nkt does not write into a folder with other files.\nName another folder.",
        "{folder} 不为空。\nkt 不会写入已有其他文件的文件夹。\n请指定其他文件夹。",
    ),
    "train.other_experts": (
        "The experts in {path} are not those of {model}.\nTheir number or sizes differ.\nGive kt_weight_path a checkpoint of the same model, as kt quant writes one.",
        "{path} 中的专家不属于 {model}。\n其数量或尺寸不同。\n请将 kt_weight_path 设为同一模型的检查点，例如由 kt quant 写出的。",
    ),
    "train.frozen_experts": (
        "kt_weight_path names other experts, and finetuning_type {type} trains the experts themselves.\nTheir checkpoint would not be the model's.\nTake out kt_weight_path, or train with finetuning_type lora.",
        "kt_weight_path 指定了其他专家，而 finetuning_type {type} 会训练专家本身。\n所得检查点将不属于该模型。\n请去掉 kt_weight_path，或使用 finetuning_type lora。",
    ),
    "train.not_taken": (
        "transformers does not take one of the settings.\n{reason}\nCorrect it in the file; docs/sft.md lists all of them.",
        "transformers 不接受其中一项设置。\n{reason}\n请在文件中更正；全部设置见 docs/sft.md。",
    ),
    "train.empty_folder": (
        "No data is in {folder}.\nFiles with rows end in {known}.\nCheck dataset.",
        "{folder} 中没有数据。\n数据文件以 {known} 结尾。\n请检查 dataset。",
    ),
    "train.hub_dataset": (
        "The data set {name} cannot be had from the hub.\n{reason}\nDownload it, and give its folder as dataset.",
        "无法从 Hub 获取数据集 {name}。\n{reason}\n请自行下载，并将其文件夹作为 dataset。",
    ),
    "train.needs_pyarrow": (
        "{file} needs the package pyarrow.\nParquet and Arrow files are read by it.\nInstall it: pip install pyarrow",
        "读取 {file} 需要软件包 pyarrow。\nParquet 与 Arrow 文件由其读取。\n请安装：pip install pyarrow",
    ),
    "train.bad_table": (
        "{file} cannot be read.\n{reason}\nCopy or download it again.",
        "无法读取 {file}。\n{reason}\n请重新复制或下载。",
    ),
    "train.needs_report": (
        "report_to names {name}, which is not installed or not known.\nInstalled here: {known}.\nInstall its package, or take it out of report_to.",
        "report_to 指定的 {name} 未安装或无法识别。\n已安装：{known}。\n请安装对应软件包，或从 report_to 中去掉。",
    ),
    "train.no_folder": (
        "output_dir {folder} cannot be written.\n{reason}\nName another folder.",
        "无法写入 output_dir {folder}。\n{reason}\n请指定其他文件夹。",
    ),
    "train.no_others": (
        "The adapter in {folder} adds to experts alone.\nThere is nothing else to write.\nLeave --part out.",
        "{folder} 中的适配器只修改专家。\n没有其他内容可写。\n请去掉 --part。",
    ),
    "train.no_experts": (
        "The adapter in {folder} has no additions to experts.\nKTransformers' pair is for those.\nUse the folder as it is: PEFT reads it.",
        "{folder} 中的适配器没有针对专家的增量。\nKTransformers 的文件对用于专家增量。\n请直接使用该文件夹：PEFT 可以读取。",
    ),
    "train.needs_extra": (
        "Fine-tuning needs the package accelerate.\nIt comes with kt's extra sft, which is not installed.\nInstall it: pip install 'kt-cli[sft]'",
        "微调需要 accelerate 包。\n它属于 kt 的 sft 附加依赖，尚未安装。\n安装：pip install 'kt-cli[sft]'",
    ),
    "train.no_plot": (
        "No loss plot: matplotlib is not installed. Install it: pip install 'kt-cli[sft]'",
        "未生成损失图：没有安装 matplotlib。安装：pip install 'kt-cli[sft]'",
    ),
    "train.failed": (
        "The run ended with an error.\n{reason}\nThe log has all of it; whole checkpoints are kept.",
        "训练因错误而结束。\n{reason}\n日志中有完整信息；已完成的检查点均保留。",
    ),
}
