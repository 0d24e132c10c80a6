"""Messages of `kt model`."""

MESSAGES: dict[str, tuple[str, str]] = {
    "model.help": ("List, download and delete models", "列出、下载和删除模型"),
    "model.examples": (
        "kt model list\nkt model pull demo\nkt model path demo\nkt model rm demo --yes",
        "kt model list\nkt model pull demo\nkt model path demo\nkt model rm demo --yes",
    ),
    "model.list_help": (
        "List the models on this disk and those that kt knows how to get",
        "列出本地的模型以及 kt 可以下载的模型",
    ),
    "model.pull_help": (
        "Download a model; an interrupted download goes on where it stopped",
        "下载模型；中断的下载会从断点继续",
    ),
    "model.path_help": ("Show where a model's files are", "显示模型文件的位置"),
    "model.rm_help": ("Delete a downloaded model", "删除已下载的模型"),
    "model.show_help": (
        "Show a model's sizes, storage, cache and parsers\n"
        "A model on this disk is read by its headers; of others the built-in shapes are shown, or what the hub has.",
        "显示模型的规模、存储、缓存与解析器\n本地模型读取其文件头；其他模型显示内置规模，或模型库中的信息。",
    ),
    "model.show_examples": (
        "kt model show demo\nkt model show r1\nkt model show qwen3-30b --hub\nkt model show OWNER/MODEL:Q4_K_M",
        "kt model show demo\nkt model show r1\nkt model show qwen3-30b --hub\nkt model show OWNER/MODEL:Q4_K_M",
    ),
    "model.any_name": (
        "Path, name, alias or hub repository of a model",
        "模型的路径、名称、别名或模型库仓库",
    ),
    "model.hub": ("Read the headers of the repository, without its weights", "读取仓库中的文件头，不下载权重"),
    "model.no_repository": (
        "Model {name} has no repository.\n\nRun: kt model show {name}",
        "模型 {name} 没有仓库。\n\n请运行：kt model show {name}",
    ),
    "model.source_files": ("headers of {path}", "{path} 的文件头"),
    "model.source_hub": ("headers of the hub's files, kept in {path}", "模型库文件的文件头，保存于 {path}"),
    "model.source_shapes": ("built-in shapes; --hub reads the real headers", "内置规模；--hub 读取实际文件头"),
    "model.row_model": ("model", "模型"),
    "model.row_source": ("known by", "来源"),
    "model.row_family": ("family", "系列"),
    "model.row_size": ("parameters", "参数"),
    "model.row_layers": ("layers", "层"),
    "model.row_stored": ("stored", "存储"),
    "model.row_part": ("  {part}", "  {part}"),
    "model.row_context": ("context", "上下文"),
    "model.row_cache": ("cache", "缓存"),
    "model.row_parsers": ("parsers", "解析器"),
    "model.row_repository": ("repository", "仓库"),
    "model.row_special": ("special", "特点"),
    "model.active": ("{total}, {active} active", "{total}，激活 {active}"),
    "model.layers": (
        "{layers} of width {hidden}, heads: {heads} ({kv} for keys)",
        "{layers} 层，宽度 {hidden}，注意力头 {heads}（键 {kv}）",
    ),
    "model.experts": (
        "; {moe} with {experts} experts of width {width}, {k} a token",
        "；{moe} 层含 {experts} 个宽度 {width} 的专家，每个 token 用 {k} 个",
    ),
    "model.method": ("; method {method}", "；方法 {method}"),
    "model.cache": (
        "{token} a token, {whole} for the whole context, in bfloat16: {kinds}",
        "每 token {token}，整个上下文 {whole}（bfloat16）：{kinds}",
    ),
    "model.parsers": ("tool calls: {calls}, reasoning: {reasoning}", "工具调用：{calls}，思考：{reasoning}"),
    "model.no_template": ("; no chat template: a base model", "；没有对话模板：基础模型"),
    "model.name": ("Name of the model; kt model list shows them", "模型名称；用 kt model list 查看"),
    "model.pulled_name": (
        "Name of a model on this disk; kt model list --pulled shows them",
        "本地模型的名称；用 kt model list --pulled 查看",
    ),
    "model.pulled": ("Only the models on this disk", "只列出本地的模型"),
    "model.yes": ("Do not ask", "不询问"),
    "model.confirm": ("Delete {folder} ({size})?", "删除 {folder}（{size}）？"),
    "model.removed": ("Deleted {folder}", "已删除 {folder}"),
    "model.kept": ("Nothing was deleted.", "没有删除任何内容。"),
    "model.in_use": (
        "Model {name} is in use.\nThe server at {url} runs it (process {pid}).\nStop that server first: kill {pid}",
        "模型 {name} 正在使用中。\n服务器 {url} 正在运行它（进程 {pid}）。\n请先停止该服务器：kill {pid}",
    ),
    "model.not_pulled": ("{size} to download", "待下载 {size}"),
    "model.column_name": ("NAME", "名称"),
    "model.column_size": ("SIZE", "大小"),
    "model.column_format": ("FORMAT", "格式"),
    "model.column_about": ("ABOUT", "说明"),
}
