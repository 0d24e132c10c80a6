"""Messages of the models room."""

MESSAGES: dict[str, tuple[str, str]] = {
    "models.only_searched": (
        "{folder} is not deleted.\nIt lies in a folder that is only searched for models; kt deletes what it has downloaded.\n"
        "Leave the folder out: kt model path remove DIR",
        "未删除 {folder}。\n它位于仅供查找模型的文件夹中；kt 只删除自己下载的内容。\n不再查找该文件夹：kt model path remove DIR",
    ),
    "models.about_demo": (
        "SmolLM2-135M-Instruct as a mixture of 16 experts (8 per token), Q4_1, made on this machine",
        "SmolLM2-135M-Instruct 改写成的混合专家模型：16 个专家，每个 token 用 8 个，Q4_1，在本机生成",
    ),
    "models.about_smollm2": (
        "SmolLM2-135M-Instruct, the dense original, Q4_1",
        "SmolLM2-135M-Instruct 稠密原版，Q4_1",
    ),
    "models.none": ("none", "无"),
    "models.unit_layers": ("layers", "层"),
    "models.stage_check": ("Checking {file}", "校验 {file}"),
    "models.stage_hub": ("Downloading from the model hub: {source}", "从模型库下载：{source}"),
    "models.stage_package": (
        "Downloading from the package registry: {source}",
        "从软件包仓库下载：{source}",
    ),
    "models.stage_build": ("Building the mixture of experts", "生成混合专家模型"),
    "models.stage_wait": (
        "Waiting for another process that pulls {name}",
        "等待另一个正在下载 {name} 的进程",
    ),
    "models.source_failed": ("{source}: {reason}", "{source}：{reason}"),
    "models.sha_differs": (
        "sha256 is {found}, expected {expected}; the file was deleted",
        "sha256 为 {found}，应为 {expected}；文件已删除",
    ),
    "models.bad_package": ("the package cannot be unpacked ({reason})", "软件包无法解开（{reason}）"),
    "models.stalled": ("no data arrived for {seconds} s", "{seconds} 秒内没有收到数据"),
    "models.no_reason": ("it failed without a message", "失败，没有给出原因"),
    "models.no_source": (
        "Model {name} could not be downloaded.\n{reasons}\n"
        "Check the network, or set a mirror (HF_ENDPOINT, PIP_INDEX_URL), then: kt model pull {asked}",
        "无法下载模型 {name}。\n{reasons}\n请检查网络，或设置镜像（HF_ENDPOINT、PIP_INDEX_URL），然后：kt model pull {asked}",
    ),
    "models.wrong_content": (
        "Model {name} was not taken: what arrived is not the registered file.\n{reasons}\n"
        "Check the mirror that your settings name, then: kt model pull {asked}",
        "未采用模型 {name}：收到的内容不是登记的文件。\n{reasons}\n请检查所设的镜像，然后：kt model pull {asked}",
    ),
    "models.build_differs": (
        "Model {name} was built, but its bytes are not the expected ones; the file was deleted.\n"
        "sha256 is {found}, expected {expected}: a damaged disk or memory, or a changed recipe.\n"
        "Try again: kt model pull {name}",
        "模型 {name} 已生成，但内容与预期不符，文件已删除。\nsha256 为 {found}，应为 {expected}：磁盘或内存损坏，或生成方法有变。\n"
        "请重试：kt model pull {name}",
    ),
    "models.disk_full": (
        "Model {name} does not fit on the disk.\n{folder} needs {needed} free and has {free}.\n"
        "Free some space, or choose another folder: kt config set paths.models FOLDER",
        "磁盘放不下模型 {name}。\n{folder} 需要 {needed} 可用空间，现有 {free}。\n"
        "请腾出空间，或另选文件夹：kt config set paths.models 文件夹",
    ),
    "models.disk_failed": (
        "Model {name} could not be stored.\n{folder}: {reason}\nMend that, then: kt model pull {name}",
        "无法保存模型 {name}。\n{folder}：{reason}\n解决后再运行：kt model pull {name}",
    ),
    "models.unreadable": (
        "The models folder {folder} cannot be read.\n{reason}\nMend that, or choose another one: kt config set paths.models FOLDER",
        "无法读取模型文件夹 {folder}。\n{reason}\n请修复，或选择其他文件夹：kt config set paths.models FOLDER",
    ),
    "models.remove_failed": (
        "{folder} could not be deleted.\n{reason}\nMend that, and delete what is left of it by hand.",
        "无法删除 {folder}。\n{reason}\n请修复后手动删除剩余内容。",
    ),
    "models.no_user": (
        "The models folder {folder} cannot be found.\n{reason}\nChoose another one: kt config set paths.models FOLDER",
        "找不到模型文件夹 {folder}。\n{reason}\n请另选文件夹：kt config set paths.models 文件夹",
    ),
    "models.unknown": (
        "There is no model called '{name}'.\nIt is no path, no downloaded model and none that kt knows.\nSee all: kt model list",
        "没有名为“{name}”的模型。\n它不是路径，也不是已下载或 kt 已知的模型。\n查看全部：kt model list",
    ),
    "models.unknown_near": (
        "There is no model called '{name}'.\nNearest: {near}.\nSee all: kt model list",
        "没有名为“{name}”的模型。\n相近的有：{near}。\n查看全部：kt model list",
    ),
    "models.repository": (
        "There is no folder {name}.\nIf it is a repository of the model hub, kt runs it once it is downloaded.\n"
        "kt model pull {name}",
        "没有文件夹 {name}。\n如果它是模型库的仓库，下载后 kt 即可运行。\nkt model pull {name}",
    ),
    "models.known_repository": (
        "Model {name} is not on this disk.\nkt knows its shape (kt plan {name} tells whether it fits) and runs it once {repo} is downloaded.\n"
        "kt model pull {name}",
        "本机没有模型 {name}。\nkt 知道它的规模（kt plan {name} 可判断能否运行），下载 {repo} 后即可运行。\n"
        "kt model pull {name}",
    ),
    "models.bad_catalogue": (
        "{path} is not right.\n{problems}\nMend that file, or move it away.",
        "{path} 有误。\n{problems}\n请修正该文件，或将其移走。",
    ),
    "models.entry_empty": ("{name} has neither path nor repo", "{name} 既没有 path 也没有 repo"),
    "models.entry_key": (
        "{name} has the unknown key {field}; known: {known}",
        "{name} 含未知的键 {field}；可用：{known}",
    ),
    "models.entry_value": ("{name}: {field} cannot be {value}", "{name}：{field} 不能是 {value}"),
    "models.entry_like": ("{name}: no built-in model is called {like}", "{name}：没有名为 {like} 的内置模型"),
    "models.offline": (
        "Nothing was asked of the model hub for {name}.\nHF_HUB_OFFLINE is set, which forbids it.\nunset HF_HUB_OFFLINE",
        "没有向模型库请求 {name}。\n已设置 HF_HUB_OFFLINE，禁止访问。\nunset HF_HUB_OFFLINE",
    ),
    "models.hub_failed": (
        "The model hub did not answer for {name}.\n{reason}\nCheck the network, or name a mirror in HF_ENDPOINT.",
        "模型库没有返回 {name}。\n{reason}\n请检查网络，或用 HF_ENDPOINT 指定镜像。",
    ),
    "models.hub_login": (
        "The model hub does not show {name} to everybody.\nIts owner asks for a login or for consent.\nLog in with hf auth login, then try again.",
        "模型库不公开 {name}。\n其所有者要求登录或同意条款。\n请用 hf auth login 登录后重试。",
    ),
    "models.no_repository": (
        "The model hub has no repository {name}.\nNames are case-sensitive there.\nCheck the name on the hub's pages.",
        "模型库没有仓库 {name}。\n名称区分大小写。\n请在模型库网页上核对名称。",
    ),
    "models.no_weights": (
        "The repository {name} has no such model.\nIt holds neither safetensors with a config.json nor a GGUF file that fits; GGUF "
        "models: {found}\nName one as OWNER/MODEL:QUANT.",
        "仓库 {name} 没有这样的模型。\n其中没有带 config.json 的 safetensors，也没有匹配的 GGUF；GGUF 模型：{found}\n"
        "请用 OWNER/MODEL:QUANT 指定。",
    ),
    "models.several_quants": (
        "The repository {name} holds several models.\n{files}\nName one: kt model show {name}:QUANT",
        "仓库 {name} 含多个模型。\n{files}\n请指定一个：kt model show {name}:QUANT",
    ),
    "models.short_answer": (
        "{url} ended early.\n{found} bytes arrived of {wanted}.\nTry again.",
        "{url} 提前结束。\n收到 {found} 字节，应为 {wanted}。\n请重试。",
    ),
    "models.quirk_vision": (
        "made to read images; kt shows them to it from its original folder, on the CPU",
        "可读图；kt 在 CPU 上从原始文件夹运行时支持图像",
    ),
    "models.quirk_mtp": ("has layers that predict further tokens; they are not run", "含多 token 预测层；不运行"),
    "models.quirk_own_code": ("its repository brings code, which kt never runs", "仓库自带代码；kt 从不运行"),
    "models.quirk_state": ("layers with a state of fixed size for each sequence", "部分层每个序列只保留固定大小的状态"),
    "models.quirk_windows": ("layers that see only the last tokens", "部分层只看最近的 token"),
    "models.quirk_indexer": (
        "sparse attention: an indexer chooses the tokens to read",
        "稀疏注意力：由索引器选择要读取的 token",
    ),
    "models.quirk_shared_indexers": ("layers that share another layer's indexer", "部分层共用其他层的索引器"),
    "models.quirk_hash_router": ("the first layers choose experts by the token alone", "前几层仅按 token 选择专家"),
    "models.quirk_expert_biases": ("experts with biases", "专家带偏置"),
    "models.quirk_zero_experts": ("experts that do nothing, which tokens may choose", "含可被选中的空专家"),
    "models.quirk_streams": ("several residual streams (hyper-connections)", "多条残差流（hyper-connections）"),
    "models.quirk_tensor_parallel_4": ("splits over 4 GPUs at most", "最多切分到 4 块 GPU"),
    "models.quirk_tensor_parallel_8": ("splits over 8 GPUs at most", "最多切分到 8 块 GPU"),
    "models.not_pulled": (
        "Model {name} is not on this disk.\nPulled models: {pulled}.\nSee all: kt model list",
        "本机没有模型 {name}。\n已下载：{pulled}。\n查看全部：kt model list",
    ),
    "models.not_pulled_yet": (
        "Model {name} is not on this disk yet.\nIt is registered, but was not pulled.\nRun: kt model pull {name}",
        "本机还没有模型 {name}。\n它已登记，但尚未下载。\n请运行：kt model pull {name}",
    ),
    "models.no_path": (
        "There is no model at {path}.\nNo such file or folder.\nGive a path that exists, or a name from: kt model list",
        "{path} 处没有模型。\n没有这个文件或文件夹。\n请给出存在的路径，或以下命令列出的名称：kt model list",
    ),
    "models.not_a_model": (
        "{path} is not a model file.\nkt reads GGUF files, and folders with config.json and safetensors files.\n"
        "Give the .gguf file or the model's folder.",
        "{path} 不是模型文件。\nkt 读取 GGUF 文件，以及含 config.json 和 safetensors 文件的文件夹。\n请给出 .gguf 文件或模型文件夹。",
    ),
    "models.empty_folder": (
        "There is no model in {path}.\nA model folder holds .gguf parts, or config.json and .safetensors files.\n"
        "Check the path, or download the model again.",
        "{path} 中没有模型。\n模型文件夹应含 .gguf 分片，或 config.json 和 .safetensors 文件。\n请检查路径，或重新下载模型。",
    ),
    "models.several": (
        "{path} holds several models.\n{files}\nGive the path of one file.",
        "{path} 中有多个模型。\n{files}\n请给出其中一个文件的路径。",
    ),
    "models.missing_files": (
        "The model in {path} is incomplete.\nMissing files: {count} ({missing}).\nDownload them, then try again.",
        "{path} 中的模型不完整。\n缺少 {count} 个文件（{missing}）。\n请下载后重试。",
    ),
    "models.bad_index": (
        "{path} is not a shard index.\nReason: {reason}.\nDownload the file again.",
        "{path} 不是分片索引。\n原因：{reason}。\n请重新下载该文件。",
    ),
    "models.index_names": (
        'it has no "weight_map" that names a shard for each tensor',
        '缺少为每个张量指明分片的 "weight_map"',
    ),
    "models.pickle": (
        "The weights in {path} are PyTorch pickle files.\nLoading them could run code that they contain.\n"
        "Take the model's safetensors files, or convert them first.",
        "{path} 中的权重是 PyTorch pickle 文件。\n加载它们可能会执行其中的代码。\n请使用该模型的 safetensors 文件，或先转换。",
    ),
    "models.demo_source": (
        "{path} cannot be made into a mixture of experts.\n"
        "It takes a Llama-type GGUF file whose FFN width is a multiple of 384.\nRun: kt model pull demo",
        "{path} 无法改写成混合专家模型。\n需要 FFN 宽度为 384 的倍数的 Llama 类 GGUF 文件。\n请运行：kt model pull demo",
    ),
    "models.bad_config": (
        "{path} does not describe a model.\n{problems}\nDownload the model again, or mend the file.",
        "{path} 没有正确描述模型。\n{problems}\n请重新下载模型，或修正该文件。",
    ),
    "models.config_unreadable": ("it cannot be read: {reason}", "无法读取：{reason}"),
    "models.config_not_json": ("it is not JSON: {reason}", "不是 JSON：{reason}"),
    "models.config_not_object": ("it is not a JSON object", "不是 JSON 对象"),
    "models.config_no_object": ("{field} is not a JSON object", "{field} 不是 JSON 对象"),
    "models.config_no_type": (
        "model_type is missing, which names the family of the model",
        "缺少 model_type，即模型所属系列的名称",
    ),
    "models.config_value": (
        "{field} is {value}, expected a whole number from {low} to {high}",
        "{field} 为 {value}，应为 {low} 到 {high} 的整数",
    ),
    "models.config_not_finite": ("{setting} is no finite number", "{setting} 不是有限数"),
    "models.config_missing": ("{field} is missing", "缺少 {field}"),
    "models.config_top_k": (
        "{k} experts per token of {experts}",
        "每个 token 用 {k} 个专家，但共有 {experts} 个",
    ),
    "models.shape_differs": (
        "{tensor} has shape {shape}, the settings say {expected}",
        "{tensor} 的形状为 {shape}，配置为 {expected}",
    ),
    "models.layers_missing": (
        "{layers} layers are stated, the weights hold {found}",
        "配置为 {layers} 层，权重中有 {found} 层",
    ),
    "models.experts_differ": (
        "{experts} experts are stated, the weights hold {found} (layer {layer})",
        "配置为 {experts} 个专家，权重中有 {found} 个（第 {layer} 层）",
    ),
}
